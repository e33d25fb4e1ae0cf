"""A table's column of splits, such as train and val: rows of several splits are never used together
unless somebody says so.

`choose_rows` decides once, on all rows and before their images are read: it refuses or doubts rows
of several splits, or says which are of the split that is asked for. `make_images` makes the images
of these once all are read, so that the classes have the same numbers in each split.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data.doubts import doubt
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.omissions import Omission
from dali_pipes.data.sources.split_cells import (
    Splits,
    find_flags,
    find_folders,
    find_numbers,
    find_words,
    name_classes,
)
from dali_pipes.errors import ConfigError, ManifestError

ALL = "all"


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
    if split == ALL:
        return Chosen(None, [])
    names = [name for name in table.column_names if name not in used]
    columns = {name: name_classes(table[name], (classes or {}).get(name)) for name in names}
    either = filter(None, (find_words(columns), find_flags(columns)))
    found = max(either, key=lambda each: len(each.counts), default=None)
    if found is not None:
        return _choose(place, found, split)

    numbers = find_numbers(columns)
    found = None if numbers else find_folders(paths)
    if split is not None and found is not None:
        return _choose(place, found, split)
    if split is not None:
        what = numbers or "has no column of splits, such as split with train and val"
        raise ManifestError(f"{place}: {what}; leave out split={split!r}")
    notes = [doubt(numbers, [], len(table))] if numbers else []
    if found is not None:
        what = f"rows are of several splits by {found.name}, {found.describe()}"
        instead = "give a table for each, or split='train' or another; split='all' takes all"
        notes.append(doubt(f"{what}; {instead}", [], len(table)))
    return Chosen(None, notes)


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
        table: as for `ImageTable.from_table`, with all rows.
    """
    facts = replace(facts, omissions=[*facts.omissions, *chosen.notes])
    whole = ImageTable.from_table(root, classes, table, facts)
    if chosen.rows is None:
        return whole, whole
    # a part is none of what an index could be of
    facts = replace(facts, reading={})
    return ImageTable.from_table(root, classes, table.filter(pa.array(chosen.rows)), facts), whole


def check_split(option: str, value: str | None) -> None:
    """Checks for the word of a split, as `split_of` returns it."""
    words = ("train", "val", "test", "trainval", ALL)
    if value is not None and value not in words:
        raise ConfigError(f"{option} is {value!r}; choose one of {', '.join(words)}")
