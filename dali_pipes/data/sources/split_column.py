"""A table's column of splits, such as train and val: rows of several splits are never used together
unless somebody says so.

`refuse_several` refuses such a table before its images are read, and `choose_split` takes the
samples of one split once all are read, so that the classes have the same numbers in each of them.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_text
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.own_columns import COLUMN
from dali_pipes.data.sets.choosing import choose
from dali_pipes.data.sources.names.splits import split_of
from dali_pipes.errors import ConfigError, ManifestError

ALL = "all"
_NAMES = ("split", "subset", "set", "partition", "phase", "usage", "fold")
_MOST = 20  # distinct values of a column of splits
# columns of flags, as fastai's is_valid: what a row is where it is set
_FLAGS = {
    "is_train": "train",
    "is_training": "train",
    "is_training_image": "train",
    "is_val": "val",
    "is_valid": "val",
    "is_validation": "val",
    "is_test": "test",
}
# what a row is where no flag is set, by the splits that have one
_OTHERWISE = {
    ("train",): "test",
    ("val",): "train",
    ("test",): "train",
    ("train", "val"): "test",
    ("test", "train"): "val",
    ("test", "val"): "train",
}
_UNCLEAR = ""


class SeveralSplitsError(ManifestError):
    """The rows of a table are of several splits, and none is asked for.

    Attributes:
        splits: how many rows each has.
    """

    # of an error that comes from another process `splits` is set afterwards
    def __init__(self, text: str, splits: Counter[str] | None = None):
        super().__init__(text)
        self.splits = splits or Counter()


def refuse_several(
    place: Path | str, table: pa.Table, used: Collection[str], split: str | None
) -> None:
    """Refuses a table with rows of several splits if none is asked for, and one without splits if
    one is asked for.

    Args:
        used: columns that are labels, paths or targets.
        split: which rows are wanted, such as "train"; "all" of them; None: nobody has said.

    Raises:
        SeveralSplitsError: there are several, and `split` is None.
        ManifestError: there is no row of the split, or flags such as is_train and is_val give a row
            two splits, or none.
    """
    if split == ALL:
        return
    found = _find({name: table[name] for name in table.column_names if name not in used})
    if found and _UNCLEAR in found.counts:
        raise ManifestError(
            f"{place}: by its {found.name}, {found.counts[_UNCLEAR]:,} rows are in two "
            "splits or in none; correct them, or take all rows with split='all'"
        )
    if found is None:
        if split is not None:
            raise ManifestError(
                f"{place}: has no column of splits, such as split with train and val; leave out "
                f"split={split!r}"
            )
        return

    name, counts = found.name, found.counts
    if split is None and len(counts) < 2:
        return
    shown = ", ".join(f"{count:,} rows of {word}" for word, count in counts.most_common())
    if split is None:
        word = "train" if "train" in counts else next(iter(counts))
        raise SeveralSplitsError(
            f"{place}: its {name} has {shown}, which must not be used together; "
            f"split={word!r} reads those of {word}, and split='all' takes all",
            counts,
        )
    if split not in counts:
        raise ManifestError(
            f"{place}: its {name} has no row of {split}, but {shown}; name one of them, or "
            "other images"
        )


def choose_split(images: ImageTable, split: str | None) -> ImageTable:
    """The images of one split; all, if that is None or "all"."""
    if split in (None, ALL):
        return images
    names = [name for name in images.samples.whole.column_names if name.startswith(COLUMN)]
    found = _find({name.removeprefix(COLUMN): images.samples.column(name) for name in names})
    if found is None:
        return images
    words = pc.unique(found.rows).to_pylist()
    wanted = [word for word in words if split_of(word.strip()) == split]
    matches = pc.is_in(found.rows, value_set=pa.array(wanted, found.rows.type))
    return choose(images, np.flatnonzero(matches.to_numpy()))


def check_split(option: str, value: str | None) -> None:
    """Checks for the word of a split, as `split_of` returns it."""
    words = ("train", "val", "test", "trainval", ALL)
    if value is not None and value not in words:
        raise ConfigError(f"{option} is {value!r}; choose one of {', '.join(words)}")


class _Splits(NamedTuple):
    """Which rows are of which split.

    Attributes:
        name: what messages call the column, or the columns of flags.
        counts: how many rows each split has.
        rows: (n,) a word of its split for each row.
    """

    name: str
    counts: Counter[str]
    rows: pa.ChunkedArray


def _find(columns: Mapping[str, pa.ChunkedArray]) -> _Splits | None:
    """The column of splits, the one with the most of them, or else the flags; None: there are
    none.
    """
    words = {
        name: column
        for name, column in columns.items()
        if name.strip().lower() in _NAMES and is_text(column.type)
    }
    found = [
        _Splits(f"column {name}", counts, column)
        for name, column in words.items()
        if (counts := _count(column))
    ]
    return max(found, key=lambda each: len(each.counts), default=None) or _find_flags(columns)


def _count(column: pa.ChunkedArray) -> Counter[str]:
    """How many rows are of each split; nothing, if this is no column of splits."""
    counts: Counter[str] = Counter()
    values = pc.value_counts(column.combine_chunks())
    if len(values) > _MOST:
        return counts
    for value in values.to_pylist():
        word = split_of((value["values"] or "").strip())
        if word is None:
            return Counter()
        counts[word] += value["counts"]
    return counts


def _find_flags(columns: Mapping[str, pa.ChunkedArray]) -> _Splits | None:
    """The splits that columns of flags say; None: there are no such columns."""
    flags: dict[str, NDArray[np.bool_]] = {}
    splits: dict[str, str] = {}
    for name, column in columns.items():
        word = name.strip().lower()
        is_set = _read_flags(column) if word in _FLAGS else None
        # is_valid of most rows says that they can be used
        if is_set is not None and (word != "is_valid" or is_set.mean() < 0.5):
            flags[name], splits[name] = is_set, _FLAGS[word]
    if not flags:
        return None

    rest = _OTHERWISE.get(tuple(sorted(set(splits.values()))), _UNCLEAR)
    rows = np.full(len(next(iter(flags.values()))), rest, object)
    times = np.sum(list(flags.values()), axis=0)
    for name, is_set in flags.items():
        rows[is_set] = splits[name]
    rows[times > 1] = _UNCLEAR
    counts = Counter(rows.tolist())
    return _Splits(
        f"column {' and '.join(flags)}", counts, pa.chunked_array([pa.array(rows, pa.string())])
    )


def _read_flags(column: pa.ChunkedArray) -> NDArray[np.bool_] | None:
    """(n,) whether each is set; None: these are no flags."""
    kind = column.type
    if column.null_count or not (pa.types.is_boolean(kind) or pa.types.is_integer(kind)):
        return None
    values = column.to_numpy()
    return values.astype(bool) if np.isin(values, (0, 1)).all() else None
