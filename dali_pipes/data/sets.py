"""Splitting, joining and renaming: the rows and classes behind `Manifest.split`, `concat`, `mix`
and `map_classes`.

The functions take and return Arrow tables, class names and class numbers; manifest.py makes
manifests of them.

- split: `group_numbers` and `parts` choose the ids of each part.
- concat: `common_root` and `moved` give all paths one root, `joined_classes` and `renumbered` one
  numbering, and `unified` joins the tables. The functions `same_…` refuse manifests that mean
  different things.
- mix: `with_source` adds the column by which samples are drawn.
- with_classes and map_classes: `number_as`, `renumbered` and `renumbered_ids`.
"""

import math
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.keypoints import Keypoints
from dali_pipes.data.labels import COLUMN, distinct_labels
from dali_pipes.data.mask_values import MaskValues
from dali_pipes.data.objects import BOX_LABELS, MASK, TARGET
from dali_pipes.data.table.schema import further_columns, replace_column
from dali_pipes.errors import ConfigError, ManifestError, check_number, shown
from dali_pipes.system.hashing import GOLDEN, splitmix64

# targets that only some of the joined manifests may have, and what the others get
_OF_SOME = {
    TARGET + name: value
    for name, value in {"dropped": "", "mask_offset": 0, "mask_bytes": 0}.items()
}
# the column of a mixture with the number, from 0, of the source that each image is from
SOURCE = "source"


class Mix(NamedTuple):
    """The arguments of `Manifest.mix`: how much of a mixture comes from which source.

    Attributes:
        mode: "stratified" or "proportional".
        shares: by the name of the source, in the order of the column `source`; their sum is 1.
    """

    mode: str
    shares: dict[str, float]


def parts(
    fractions: Mapping[str, float], groups: NDArray[np.int64], seed: int
) -> dict[str, NDArray[np.int64]]:
    """Chooses the ids of each part of a split, in ascending order.

    Groups are put in a random order, and cut where the number of samples comes nearest to the
    fractions.

    Args:
        fractions: name and share of each part.
        groups: (n,) the group of each sample; a group is never divided.

    Raises:
        ConfigError: the fractions are no shares of 1.
    """
    if not isinstance(fractions, Mapping):
        raise ConfigError(
            f'fractions is {shown(fractions)}; it takes names and shares, such as {{"train": '
            f'0.9, "val": 0.1}}'
        )
    fractions = {
        name: check_number(f"the share of {name!r}", share, -math.inf, math.inf)
        for name, share in fractions.items()
    }
    if (
        not fractions
        or not all(share > 0 for share in fractions.values())
        # a sum of floats may be a little above 1
        or sum(fractions.values()) > 1 + 1e-9
    ):
        raise ConfigError(
            f"fractions are {dict(fractions)}; each must be positive, and their sum at most 1"
        )

    # order the groups by a hash, which is the same on any machine and with any NumPy
    numbers, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    # the products are meant modulo 2**64
    with np.errstate(over="ignore"):
        keys = (numbers.astype(np.uint64) + np.uint64(1)) * GOLDEN + np.uint64(seed) * np.uint64(
            0xD1342543DE82EF95
        )
        order = np.argsort(splitmix64(keys), kind="stable")

    # cut at the ends of groups
    ends = np.append(0, counts[order].cumsum())
    wanted = np.append(0.0, np.cumsum(list(fractions.values()))) * len(groups)
    cuts = pairwise(int(np.abs(ends - each).argmin()) for each in wanted)

    return {
        name: np.flatnonzero(np.isin(place, order[slice(*cut)]))
        for name, cut in zip(fractions, cuts, strict=True)
    }


def group_numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Numbers the values of a column, (n,): equal values have the same number.

    Raises:
        ConfigError: the column holds lists.
    """
    values = column.combine_chunks()
    if pa.types.is_nested(values.type):
        raise ConfigError("by is a column of lists; name one with a single value for each image")
    return pc.rank(values, "ascending", tiebreaker="dense").to_numpy().astype(np.int64)


def common_root(roots: Sequence[Path | str]) -> Path | str:
    """The nearest folder or URL that all of these begin with.

    Raises:
        ManifestError: there is none: some are in another bucket, or on this machine.
    """
    if len(set(map(str, roots))) == 1:
        return roots[0]

    if not any(isinstance(root, str) for root in roots):
        return Path(os.path.commonpath(roots))

    stores, paths = zip(*(str(root).rpartition("://")[::2] for root in roots), strict=True)
    if len(set(stores)) > 1 or not stores[0] or not (shared := os.path.commonpath(paths)):
        raise ManifestError(
            f"{' and '.join(map(str, roots))} cannot be joined: images in object stores "
            "must be of one bucket; copy the others "
            "there, or all of them here"
        )

    return f"{stores[0]}://{shared}"


def moved(table: pa.Table, root: Path | str, to: Path | str) -> pa.Table:
    """Makes the paths of a table relative to `to`, which is `root` or above it."""
    if root == to:
        return table

    prefix = os.path.join(os.path.relpath(root, to), "")
    for name in {"path", MASK} & set(table.column_names):
        old, kind = table[name], table[name].type
        given, nothing = (pa.scalar(text).cast(kind) for text in (os.fsencode(prefix), b""))
        new = pc.binary_join_element_wise(given, old, nothing)
        # an empty path of a mask says that there is none, and stays empty
        table = replace_column(table, name, pc.if_else(pc.equal(old, nothing), old, new))
    return table


def joined_classes(
    names: Sequence[list[str]], apart: bool
) -> tuple[list[str], list[NDArray[np.int64]]]:
    """Joins lists of class names.

    Args:
        apart: whether classes of the same name in two lists stay two classes.

    Returns:
        All names in the order in which they first come, and for each list the new number of each of
        its classes.
    """
    if apart:
        ends = np.cumsum([len(each) for each in names])
        numbered = [np.arange(end - len(each), end) for end, each in zip(ends, names, strict=True)]
        return [name for each in names for name in each], numbered

    numbers = {
        name: number
        for number, name in enumerate(dict.fromkeys(name for each in names for name in each))
    }
    return list(numbers), [np.array([numbers[name] for name in each], np.int64) for each in names]


def describe_difference(first: Sequence[str], second: Sequence[str]) -> str:
    """Says in a few words how two lists of classes differ."""
    only = [
        [name for name in one if name not in set(other)]
        for one, other in ((first, second), (second, first))
    ]

    differences = [
        (
            f"{len(names)} only in the {which} "
            f"({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        )
        for names, which in zip(only, ("first", "second"), strict=True)
        if names
    ]

    return (
        f"not the same classes: {'; '.join(differences) or 'another order'}; a label would "
        "mean two things"
    )


def number_as(
    given: list[str], names: list[str], used: NDArray[np.int64], place: Path | str
) -> NDArray[np.int64]:
    """Finds the number in `given` of each class in `names`; -1 for one that no image has.

    Classes without names, which are called by their numbers, keep these numbers.

    Args:
        used: numbers of the classes that images have.
        place: the data set, for error messages.

    Raises:
        ManifestError: an image has a class that is none of the given ones.
    """
    if names == [str(number) for number in range(len(names))] and not set(names) <= set(given):
        if used.max(initial=-1) >= len(given):
            raise ManifestError(
                f"{place}: an image has the class number {used.max()}, and classes names "
                f"{len(given)}"
            )
        return np.arange(len(names))

    numbers = {name: number for number, name in enumerate(given)}
    if unknown := [names[number] for number in used.tolist() if names[number] not in numbers]:
        near = get_close_matches(unknown[0], given, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ManifestError(
            f"{place}: images of {len(unknown):,} classes that are none of the "
            f"{len(given):,} given as classes, "
            f"such as {unknown[0]!r}{meant}; add them there, or remove these images"
        )
    return np.array([numbers.get(name, -1) for name in names], np.int64)


def renumbered(table: pa.Table, numbers: NDArray[np.int64]) -> pa.Table:
    """Replaces class numbers in labels and objects: n becomes numbers[n].

    The -1 of an unusable image stays, and so do numbers to predict.
    """
    if BOX_LABELS in table.column_names:
        objects = table[BOX_LABELS].combine_chunks()
        new = pa.array(numbers).take(objects.flatten())
        # the offsets of a slice are those of the whole array, unlike its flatten()
        offsets = pc.subtract(objects.offsets, objects.offsets[0])
        table = replace_column(table, BOX_LABELS, pa.LargeListArray.from_arrays(offsets, new))

    labels = table["label"].combine_chunks()
    if pa.types.is_list(labels.type):  # several classes for each image
        new = pa.array(numbers.astype(np.int32)).take(labels.flatten())
        rows = pa.ListArray.from_arrays(pc.subtract(labels.offsets, labels.offsets[0]), new)
        # an image may have had two classes that became one
        if len(set(numbers.tolist())) < len(numbers):
            rows = distinct_labels(
                rows.value_lengths().to_numpy(), new.to_numpy().astype(np.int64), len(numbers)
            )
        return replace_column(table, "label", rows)

    if not pa.types.is_integer(labels.type):
        return table

    old = labels.to_numpy()
    # -1, and what is no class, index the -1 at the end
    return replace_column(
        table,
        "label",
        pa.array(np.append(numbers, -1).astype(np.int32)[np.where(old < len(numbers), old, -1)]),
    )


def renumbered_ids(
    ids: Sequence[Any], numbers: NDArray[np.int64], classes: int
) -> list[Any] | None:
    """The COCO category of each class after the classes got other numbers.

    Returns None where two categories became one class. In the list, a class that was no category
    has None.
    """
    kept = numbers[numbers >= 0].tolist()
    if len(set(kept)) < len(kept):
        return None
    of = {int(number): each for number, each in zip(numbers, ids, strict=True)}
    return [of.get(number) for number in range(classes)]


def same_masks(found: Sequence[MaskValues]) -> dict[str, Any]:
    """What is known of the values of all masks.

    Raises:
        ManifestError: they mean different classes.
    """
    if any(each != found[0] for each in found):
        why = "the values of their masks mean different classes"
        raise ManifestError(
            f"the manifests cannot be joined: {why}; scan them with the same classes and "
            "mask_values"
        )
    return {"mask_values": found[0].stored()}


def same_boxes(upright: Sequence[bool]) -> bool:
    """Whether all boxes were given for upright pictures.

    Raises:
        ManifestError: only some were.
    """
    if len(set(upright)) > 1:
        why = "results cannot go back to stored and to upright pictures"
        raise ManifestError(
            f"the manifests cannot be joined: {why}; scan them with the same annotated"
        )
    return bool(upright and upright[0])


def same_keypoints(found: Sequence[Keypoints | None]) -> dict[str, Any]:
    """What is known of the keypoints of all objects.

    Raises:
        ManifestError: they differ.
    """
    if any(each != found[0] for each in found):
        raise ManifestError(
            "manifests with different keypoints cannot be joined; scan them with the same names"
        )
    return {} if found[0] is None else {"keypoints": list(found[0])}


def unified(tables: Sequence[pa.Table]) -> pa.Table:
    """Joins tables into one.

    Where a table lacks a column of numbers it has NaN, as for an empty cell; of a text, the empty
    text.

    Raises:
        ManifestError: their labels or columns are of different types.
    """
    kinds = sorted({str(table["label"].type) for table in tables})
    if len(kinds) > 1:
        raise ManifestError(
            f"manifests with labels of different types cannot be joined: {' and '.join(kinds)}"
        )

    names = dict.fromkeys(name for table in tables for name in further_columns(table))
    for name in names:
        tables = _with_column(tables, name)

    order = tables[0].column_names
    return pa.concat_tables([table.select(order) for table in tables])


def with_source(table: pa.Table, number: int) -> pa.Table:
    if COLUMN + SOURCE in table.column_names:
        raise ManifestError(
            f"a manifest to mix has a column {SOURCE!r} already; mix its parts, or rename it"
        )
    return table.append_column(
        COLUMN + SOURCE, pa.repeat(pa.scalar(number, pa.int64()), len(table))
    )


def _with_column(tables: Sequence[pa.Table], name: str) -> list[pa.Table]:
    (kind, *others) = {table[name].type for table in tables if name in table.column_names}
    lacking = any(name not in table.column_names for table in tables)

    if lacking and name.startswith(TARGET) and name not in _OF_SOME:
        label = name.removeprefix(TARGET)
        raise ManifestError(
            f"only some of the manifests have {label}; join those that have the same targets"
        )

    if others or (lacking and pa.types.is_nested(kind)):
        label = name.removeprefix(COLUMN)
        raise ManifestError(
            f"the column {label} is not in all manifests, or of different types there; rename "
            "it or leave it out"
        )

    if not lacking:
        return list(tables)

    empty = _OF_SOME.get(name, "")
    if name not in _OF_SOME and not pa.types.is_large_string(kind):
        # integers become fractions as well, since only these have NaN
        kind, empty = pa.float32(), float("nan")

    return [
        replace_column(table, name, table[name].cast(kind, safe=False))
        if name in table.column_names
        else table.append_column(name, pa.repeat(pa.scalar(empty, kind), len(table)))
        for table in tables
    ]
