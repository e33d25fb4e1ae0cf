"""A table's column of splits, such as train and val: rows of several splits are never used together
unless somebody says so.

`choose_rows` decides once, on all rows and before their images are read: it refuses or doubts rows
of several splits, or says which are of the split that is asked for. `make_images` makes the images
of these once all are read, so that the classes have the same numbers in each split.

A column of words says it (`find_words`), or else columns of flags (`find_flags`). Numbers
(`find_numbers`) and folders (`find_folders`) only make it likely. One empty or unknown cell changes
nothing in that: its row is of no split.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_text
from dali_pipes.data.doubts import doubt
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.omissions import Omission
from dali_pipes.data.sources.names import split_of, word_of_split
from dali_pipes.data.sources.options import ALL_SPLITS
from dali_pipes.errors import ManifestError

# names are compared without blanks, signs and capitals
_NAMES = ("subset", "set", "partition", "phase", "usage", "fold", "dataset", "datasettype")
_NUMBERED = ("split", "partition")
# columns of flags, as fastai's is_valid: what a row is where it is set
_FLAGS = {
    "istrain": "train",
    "istraining": "train",
    "istrainingimage": "train",
    "isval": "val",
    "isvalid": "val",
    "isvalidation": "val",
    "istest": "test",
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
_SAYS_USABLE = ("isvalid", "valid")  # and no split, if it is set in half of the rows or more
_SET, _NOT_SET = "1", "0"
_SIGNS = dict.fromkeys(("1", "1.0", "true", "yes", "y", "t"), _SET)
_SIGNS |= dict.fromkeys(("0", "0.0", "false", "no", "n", "f"), _NOT_SET)
# what a row is where no flag is set, by the splits that have one
_OTHERWISE = {
    ("train",): "test",
    ("val",): "train",
    ("test",): "train",
    ("train", "val"): "test",
    ("test", "train"): "val",
    ("test", "val"): "train",
}
# cells that name no split: empty ones, and others
_EMPTY, _UNKNOWN = "", "?"
_LOOKED = 100  # cells of a column that is not called so
_BLANK = ("", "nan", "none", "null", "na", "n/a", "<na>")


class Splits(NamedTuple):
    """Which rows are of which split.

    Attributes:
        name: what messages call the column, or the columns of flags.
        cells: (n,) the split of each row, or that it has none.
        counts: how many rows each split has.
        without: how many rows have none.
        example: the cell of the first of these.
        mistake: why the rows cannot be told apart; "": they can.
        is_sure: whether nothing else can be meant.
    """

    name: str
    cells: NDArray[np.str_]
    counts: Counter[str]
    without: int
    example: str = ""
    mistake: str = ""
    is_sure: bool = True

    def describe(self) -> str:
        told = [f"{count:,} rows of {word}" for word, count in self.counts.most_common()]
        if self.without:
            told.append(f"{self.without:,} rows of no split (such as {self.example!r})")
        return ", ".join(told)


def name_classes(column: pa.ChunkedArray, names: list[str] | None) -> pa.ChunkedArray:
    """The names of class numbers."""
    if not names or not pa.types.is_integer(column.type):
        return column
    is_class = pc.and_(pc.greater_equal(column, 0), pc.less(column, len(names)))
    numbers = pc.if_else(is_class, column, pa.scalar(None, column.type))
    return pa.chunked_array([pa.array(names, pa.string()).take(numbers.combine_chunks())])


def find_words(columns: Mapping[str, pa.ChunkedArray]) -> Splits | None:
    """The column of words, the one with the most splits; None: there is none.

    In a column that is called so, half of the words must be of splits, and in another one all.
    """
    found: list[Splits] = []
    # the first of those with as many is taken
    for name in sorted(columns, key=lambda name: not is_called_split(name)):
        column = columns[name]
        if not is_text(column.type):
            continue
        is_called_so = is_called_split(name)
        if not is_called_so and not _are_words_of_splits(column):
            continue
        cells = _read_cells(column, split_of if is_called_so else word_of_split)
        splits = _count(f"column {name}", cells, column)
        # a column called dataset may name data sets, of which one is lvis_train
        least = 1 if _key(name).endswith("split") else 2
        share = 0.5 if is_called_so else 1
        if _share(cells) >= share and len(splits.counts) >= least:
            found.append(splits)
    return max(found, key=lambda each: len(each.counts), default=None)


def find_flags(columns: Mapping[str, pa.ChunkedArray]) -> Splits | None:
    """The splits that columns of flags say; None: there are no such columns.

    Half of the cells of is_train must be flags, and all of train, which may be numbers of trains.
    """
    flags: dict[str, NDArray[np.str_]] = {}
    for name, column in columns.items():
        key = _key(name)
        cells = _read_cells(column, _read_sign) if key in _FLAGS else np.zeros(0, str)
        if _share(cells) < (0.5 if key.startswith("is") else 1):
            continue
        if key not in _SAYS_USABLE or (cells == _SET).mean() < 0.5:
            flags[name] = cells
    if not flags:
        return None

    splits = {name: _FLAGS[_key(name)] for name in flags}
    rest = _OTHERWISE.get(tuple(sorted(set(splits.values()))), _UNKNOWN)
    cells = np.full(len(next(iter(flags.values()))), rest, "U8")
    for name, signs in flags.items():
        cells[signs == _SET] = splits[name]
    cells[np.sum([signs == _SET for signs in flags.values()], axis=0) > 1] = _UNKNOWN

    called = " and ".join(flags)
    # one column called train may be a class, which some images have
    is_sure = len(flags) > 1 or _key(called).startswith("is")
    found = _count(f"column {called}", cells)._replace(is_sure=is_sure)
    empty = np.any([np.isin(signs, (_EMPTY, _UNKNOWN)) for signs in flags.values()], axis=0).sum()
    if empty:
        return found._replace(mistake=f"{empty:,} rows have no {called}, or another sign than 0, 1")
    if found.without:
        why = f"by its {found.name}, {found.without:,} rows are in two splits or in none"
        return found._replace(mistake=why)
    return found


def find_numbers(columns: Mapping[str, pa.ChunkedArray]) -> str:
    """Says that a column of splits has numbers, as CelebA's partition; "": there is none."""
    digits = {"0": "0", "1": "1", "2": "2"}
    for name, column in columns.items():
        if _key(name) in _NUMBERED:
            cells = _read_cells(column, digits.get)
            splits = _count(name, cells)
            if _share(cells) == 1 and len(splits.counts) > 1:
                return (
                    f"rows are probably of several splits by the numbers in {name}, "
                    f"{splits.describe()}; manifest.filter({f'{name} == 0'!r}) reads those of one, "
                    "as the filter of a job does, and split='all' takes all"
                )
    return ""


def find_folders(paths: Sequence[str]) -> Splits | None:
    """The splits that the folders of all images are called by, below the folders that all are in;
    None: not all are.
    """
    heads = [path.replace("\\", "/").rpartition("/")[0] for path in paths]
    # many images are in one folder
    folders = {
        head: [part for part in head.split("/") if part not in ("", ".")] for head in set(heads)
    }
    some = list(filter(None, folders.values()))
    first, last = min(some, default=[]), max(some, default=[])
    # of sorted lists the first and the last have only what all have
    depth = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))))
    known = {
        # train2017 is of train
        head: word_of_split("".join(parts[depth : depth + 1]).strip("0123456789-_ "))
        for head, parts in folders.items()
    }
    words = [
        (known[head] or _UNKNOWN) if path else _EMPTY
        for path, head in zip(paths, heads, strict=True)
    ]
    cells = np.array(words, str)
    if _UNKNOWN in words:
        return None
    found = _count("the folders of its images", cells)._replace(is_sure=False)
    return found if len(found.counts) > 1 else None


def _read_sign(text: str) -> str | None:
    return _SIGNS.get(text.lower())


def is_called_split(name: str) -> bool:
    """Whether a column of this name usually says which split a row is of."""
    return _key(name) in _NAMES or _key(name).endswith("split")


def _key(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.lower())


def _read_cells(column: pa.ChunkedArray, read: Callable[[str], str | None]) -> NDArray[np.str_]:
    """(n,) what each cell says: what `read` returns for its text, or that it is empty or unknown;
    nothing, if the column has no such cells.
    """
    kind = column.type
    if pa.types.is_floating(kind):
        column = column.cast(pa.float64())
    elif not (is_text(kind) or pa.types.is_boolean(kind) or _is_whole(kind)):
        return np.zeros(0, str)
    encoded = column.cast(pa.large_string()).combine_chunks().dictionary_encode()
    texts = [text.strip() for text in encoded.dictionary.to_pylist()]
    said = [_EMPTY if text.lower() in _BLANK else read(text) or _UNKNOWN for text in texts]
    places = encoded.indices.fill_null(len(said)).to_numpy(zero_copy_only=False)
    return np.array([*said, _EMPTY], str)[places]


def _are_words_of_splits(column: pa.ChunkedArray) -> bool:
    """Whether the first cells are: of captions it takes long to look at all."""
    first = column.slice(0, _LOOKED).to_pylist()
    return all(
        word_of_split(text.strip()) or text.strip().lower() in _BLANK for text in first if text
    )


def _is_whole(kind: pa.DataType) -> bool:
    # databases write whole numbers as decimals
    return pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0)


def _share(cells: NDArray[np.str_]) -> float:
    """The share that is known, of the cells that are not empty."""
    filled = cells[cells != _EMPTY]
    return float((filled != _UNKNOWN).mean()) if filled.size else 0.0


def _count(name: str, cells: NDArray[np.str_], column: pa.ChunkedArray | None = None) -> Splits:
    counts = Counter(cells.tolist())
    without = counts.pop(_EMPTY, 0) + counts.pop(_UNKNOWN, 0)
    example = None
    if without and column is not None:
        example = column[int(np.isin(cells, (_EMPTY, _UNKNOWN)).argmax())].as_py()
    return Splits(name, cells, counts, without, example or "")


class SeveralSplitsError(ManifestError):
    """The rows of a table are of several splits, and none is asked for.

    Attributes:
        splits: how many rows each has.
    """

    # of an error that comes from another process `splits` is set afterwards
    def __init__(self, text: str, splits: Counter[str] | None = None):
        super().__init__(text)
        self.splits = splits or Counter()


class Chosen(NamedTuple):
    """The rows of a table that are used.

    Attributes:
        rows: (n,) bool; None: all.
        notes: what is left out, or in doubt.
    """

    rows: NDArray[np.bool_] | None
    notes: list[Omission]


def choose_rows(
    place: Path | str,
    table: pa.Table,
    used: Collection[str],
    split: str | None,
    *,
    classes: Mapping[str, list[str]] | None = None,
    paths: Sequence[str] = (),
) -> Chosen:
    """Chooses the rows of one split.

    Args:
        used: columns that are labels, paths or targets.
        split: which rows are wanted, such as "train"; "all" of them; None: nobody has said.
        classes: the names of columns that hold numbers of these.
        paths: those of the images, of which the folders may name splits.

    Raises:
        SeveralSplitsError: there are several, and `split` is None.
        ManifestError: there is no row of the split, or flags such as is_train and is_val give a row
            two splits, or none.
    """
    if split == ALL_SPLITS:
        return Chosen(None, [])
    names = [name for name in table.column_names if name not in used]
    columns = {name: name_classes(table[name], (classes or {}).get(name)) for name in names}
    either = filter(None, (find_words(columns), find_flags(columns)))
    found = max(either, key=lambda each: len(each.counts), default=None)
    numbers = find_numbers(columns) if found is None else ""
    if found is None and not numbers:
        found = find_folders(paths)

    if found is not None and (found.is_sure or split is not None):
        return _choose(place, found, split)
    if split is not None:
        what = numbers or "has no column of splits, such as split with train and val"
        raise ManifestError(f"{place}: {what}; leave out split={split!r}")

    # nobody is asked where it is only likely
    in_doubt = numbers
    if found is not None and len(found.counts) > 1:
        instead = "give a table for each, or split='train' or another; split='all' takes all"
        in_doubt = f"rows are of several splits by {found.name}, {found.describe()}; {instead}"
    return Chosen(None, [doubt(in_doubt, [], len(table))] if in_doubt else [])


def _choose(place: Path | str, found: Splits, split: str | None) -> Chosen:
    if found.mistake:
        raise ManifestError(
            f"{place}: {found.mistake}; correct them, or take all rows with split='all'"
        )
    counts, shown = found.counts, found.describe()
    if split is None and len(counts) + bool(found.without) < 2:
        return Chosen(None, [])
    if split is None:
        word = "train" if "train" in counts else next(iter(counts))
        raise SeveralSplitsError(
            f"{place}: its {found.name} has {shown}, which must not be used together; "
            f"split={word!r} reads those of {word}, and split='all' takes all",
            counts,
        )
    if split not in counts:
        raise ManifestError(
            f"{place}: its {found.name} has no row of {split}, but {shown}; name one of them, or "
            "other images"
        )
    left = len(found.cells) - counts[split]
    what = f"rows of other splits than {split}; its {found.name} has {shown}"
    return Chosen(found.cells == split, [doubt(what, [], left, "note")] if left else [])


def make_images(
    root: Path | str,
    classes: list[str],
    table: pa.Table,
    facts: ManifestFacts,
    chosen: Chosen,
) -> tuple[ImageTable, ImageTable]:
    """The images of the rows that are used, and those of all rows.

    Args:
        table: as for `ImageTable.from_rows`, with all rows.
    """
    facts = replace(facts, omissions=[*facts.omissions, *chosen.notes])
    whole = ImageTable.from_rows(root, classes, table, facts)
    if chosen.rows is None:
        return whole, whole
    # a part is none of what an index could be of
    facts = replace(facts, reading={})
    return ImageTable.from_rows(root, classes, table.filter(pa.array(chosen.rows)), facts), whole
