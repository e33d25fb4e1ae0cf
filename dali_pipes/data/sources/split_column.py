"""A table's column of splits, such as train and val: rows of several splits are never used together
unless somebody says so.

`refuse_several` refuses such a table before its images are read, and `choose_split` takes the
samples of one split once all are read, so that the classes have the same numbers in each of them.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.arrow_types import is_text
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.own_columns import COLUMN
from dali_pipes.data.sets.choosing import choose
from dali_pipes.data.sources.names.splits import split_of
from dali_pipes.errors import ConfigError, ManifestError

ALL = "all"
_NAMES = ("split", "subset", "set", "partition", "phase", "usage", "fold")
_MOST = 20  # distinct values of a column of splits


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
        ManifestError: there is no row of the split.
    """
    if split == ALL:
        return
    found = _find({name: table[name] for name in table.column_names if name not in used})
    if found is None:
        if split is not None:
            raise ManifestError(
                f"{place}: has no column of splits, such as split with train and val; leave out "
                f"split={split!r}"
            )
        return

    name, counts = found
    if split is None and len(counts) < 2:
        return
    shown = ", ".join(f"{count:,} rows of {word}" for word, count in counts.most_common())
    if split is None:
        word = "train" if "train" in counts else next(iter(counts))
        raise SeveralSplitsError(
            f"{place}: its column {name} has {shown}, which must not be used together; "
            f"split={word!r} reads those of {word}, and split='all' takes all",
            counts,
        )
    if split not in counts:
        raise ManifestError(
            f"{place}: its column {name} has no row of {split}, but {shown}; name one of them, or "
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
    column = images.samples.column(COLUMN + found[0])
    words = pc.unique(column).to_pylist()
    wanted = [word for word in words if split_of(word.strip()) == split]
    matches = pc.is_in(column, value_set=pa.array(wanted, column.type))
    return choose(images, np.flatnonzero(matches.to_numpy()))


def check_split(option: str, value: str | None) -> None:
    """Checks for the word of a split, as `split_of` returns it."""
    words = ("train", "val", "test", "trainval", ALL)
    if value is not None and value not in words:
        raise ConfigError(f"{option} is {value!r}; choose one of {', '.join(words)}")


def _find(columns: Mapping[str, pa.ChunkedArray]) -> tuple[str, Counter[str]] | None:
    """The column of splits, the one with the most of them, and how many rows each has; None: there
    is none.
    """
    found = {name: counts for name, column in columns.items() if (counts := _count(name, column))}
    if not found:
        return None
    name = max(found, key=lambda each: len(found[each]))
    return name, found[name]


def _count(name: str, column: pa.ChunkedArray) -> Counter[str]:
    """How many rows are of each split; nothing, if this is no column of splits."""
    counts: Counter[str] = Counter()
    if name.strip().lower() not in _NAMES or not is_text(column.type):
        return counts
    values = pc.value_counts(column.combine_chunks())
    if len(values) > _MOST:
        return counts
    for value in values.to_pylist():
        word = split_of((value["values"] or "").strip())
        if word is None:
            return Counter()
        counts[word] += value["counts"]
    return counts
