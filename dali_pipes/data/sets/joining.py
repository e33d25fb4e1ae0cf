"""Several sets as one: `concat` joins their roots, classes and tables, and what is known of them,
which is refused where it means different things. `read_shares` reads the shares of a mixture, and
`add_source` numbers its sources.
"""

import math
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.checks import check_number
from dali_pipes.data.composed import composed
from dali_pipes.data.doubts import (
    UNNAMED_SETS,
    doubt,
    find_alike_names,
    find_doubts_of_names,
    find_repeated,
    is_of_names,
    is_of_repeated,
)
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.labels.reader import number_names
from dali_pipes.data.mask_values import MaskValues
from dali_pipes.data.objects import MASK, TARGET, Keypoints
from dali_pipes.data.omissions import Omission, merge
from dali_pipes.data.own_columns import COLUMN, IMAGE_ID, to_float32
from dali_pipes.data.sets.classes import renumber_classes
from dali_pipes.data.sets.same_images import number_contents
from dali_pipes.data.table.samples import Samples
from dali_pipes.data.table.schema import further_columns, replace_column
from dali_pipes.errors import ConfigError, ManifestError

# targets that only some of the joined tables may have, and what the others get
_OPTIONAL_TARGETS = {
    TARGET + name: value
    for name, value in {"dropped": "", "mask_offset": 0, "mask_bytes": 0}.items()
}
# the column of a mixture with the number, from 0, of the source that each image is from
SOURCE = "source"


def concat(sets: Sequence[ImageTable], apart: bool) -> ImageTable:
    """Joins images: their samples one after the other, under the nearest common folder.

    Args:
        sets: one at least.
        apart: whether classes of the same name in two sets stay two classes.

    Raises:
        ManifestError: some are in another store, or labels, columns or targets mean different
            things.
    """
    sets = _with_own_ids(sets)
    root = common_root([images.root for images in sets])
    classes, numbers = join_classes([images.classes for images in sets], apart)
    facts = _join_facts(sets, classes, numbers)

    def join(tables: list[pa.Table]) -> pa.Table:
        return _concat_tables(
            [
                renumber_classes(_rebase_paths(table, images.root, root), new)
                for images, table, new in zip(sets, tables, numbers, strict=True)
            ]
        )

    files = tuple(file for images in sets for file in images.rows.files)
    rows = Samples(join([images.rows.table() for images in sets]), files)
    # `from_rows` would read all rows to check them; those of mapped files are checked as they are
    # taken
    joined = ImageTable(root, rows, classes, join([images.others for images in sets]), facts)
    # what is only true of all images together is looked for anew
    doubts = [
        each for each in facts.doubts or () if not is_of_repeated(each) and not is_of_names(each)
    ]
    if _may_repeat(joined, sets):
        doubts += find_repeated(joined)
    if any(map(is_of_names, facts.doubts or ())):  # nobody has named the numbers
        doubts += find_doubts_of_names(joined)
    elif not apart:
        doubts += find_alike_names(joined)
    named = [each for each in sets if each.classes]
    unnamed = [each for each in named if each.classes == number_names(len(each.classes))]
    if 0 < len(unnamed) < len(named) and not apart:
        what = f"{UNNAMED_SETS}, which become classes of their own; name the numbers (with_classes)"
        doubts.append(doubt(what, [os.fspath(each.root) for each in unnamed], len(unnamed)))
    return joined.with_facts(doubts=doubts)


def _may_repeat(joined: ImageTable, sets: Sequence[ImageTable]) -> bool:
    """Whether an image may be in two of the sets. Folders beside each other have different ones,
    and there may be many.
    """
    if number_contents(joined) is not None or not all(each.facts.folders for each in sets):
        return True
    roots = sorted(os.path.join(os.fspath(each.root), "") for each in sets)
    return any(second.startswith(first) for first, second in pairwise(roots))


def _with_own_ids(sets: Sequence[ImageTable]) -> Sequence[ImageTable]:
    """The sets with image ids that no two of them share, if they are of COCO's form.

    Raises:
        ManifestError: ids that are text are shared.
    """
    name = COLUMN + IMAGE_ID
    named = [images for images in sets if name in images.rows.whole.column_names]
    if len(named) < 2 or any(images.facts.category_ids is None for images in named):
        return sets

    changed, seen = list(sets), named[0].rows.column(name).slice(0, 0)
    for place, images in enumerate(sets):
        if name not in images.rows.whole.column_names:
            continue
        ids = images.rows.column(name)
        if ids.type != seen.type:
            ids, seen = ids.cast(pa.large_string()), seen.cast(pa.large_string())
        if pc.any(pc.is_in(ids, value_set=seen)).as_py():
            if not pa.types.is_integer(ids.type):
                raise ManifestError(
                    f"{images.root}: its image ids are text, and another set has some of them too; "
                    "give each image an id of its own"
                )
            more = pc.max(seen).as_py() + 1 - pc.min(ids).as_py()
            what = (
                f"image ids that are {more:,} higher than in their file, since another set has the "
                "same"
            )
            changed[place] = images = _move_ids(images, more, what)
            ids = images.rows.column(name)
        seen = pa.chunked_array([*seen.chunks, *ids.chunks], ids.type)
    return changed


def _move_ids(images: ImageTable, more: int, what: str) -> ImageTable:
    name = COLUMN + IMAGE_ID
    moved = images.map_tables(
        lambda table: replace_column(table, name, pc.add(table[name], pa.scalar(more, pa.int64())))
    )
    note = Omission(what, len(images), [], "note")
    return moved.with_facts(omissions=[*moved.facts.omissions, note])


def _join_facts(
    sets: Sequence[ImageTable], classes: list[str], numbers: Sequence[NDArray[np.int64]]
) -> ManifestFacts:
    """What is known of all images: each fact is joined, or refused if it differs.

    Args:
        classes: those of the joined images.
        numbers: for each set the new number of each of its classes.
    """
    every = [images.facts for images in sets]
    keypoints = _join_keypoints([facts.keypoints for facts in every])

    if len({facts.masks_upright for facts in every}) > 1:
        raise ManifestError(
            "manifests with masks of stored and of upright pictures cannot be joined; scan "
            "them alike"
        )
    # boxes on images that are not turned fit both
    boxes_upright = _join_boxes_upright(
        [images.facts.boxes_upright for images in sets if images.has_turned_boxes]
    )
    masks: dict[str, Any] = {}
    if any(images.has_target("mask") for images in sets):
        new_values = [
            facts.mask_values.renumber(new) for facts, new in zip(every, numbers, strict=True)
        ]
        masks = {"mask_values": _join_mask_values(new_values)}

    # the ids of COCO's categories are kept if all sets agree in them
    is_alike = all(
        images.classes == classes and images.facts.category_ids == every[0].category_ids
        for images in sets
    )

    # parts stand for the wholes that they were chosen from
    parents: dict[str, Any] = {}
    if any(images.of_whole for images in sets):
        bad, total = zip(*(images.bad_of_whole for images in sets), strict=True)
        parents = {
            "parent_omissions": merge(
                omission for images in sets for omission in images.omissions_in_all
            ),
            "parent_bad_images": (sum(bad), sum(total)),
        }

    return ManifestFacts(
        omissions=merge(omission for images in sets for omission in images.passed_over),
        doubts=merge(doubt for facts in every for doubt in facts.doubts or ()),
        keypoints=keypoints,
        names_flip_pairs=all(facts.names_flip_pairs for facts in every),
        masks_upright=every[0].masks_upright,
        boxes_upright=boxes_upright,
        category_ids=every[0].category_ids if is_alike else None,
        turned_by_source=any(facts.turned_by_source for facts in every),
        has_wide=any(facts.has_wide for facts in every),
        **masks,
        **parents,
    )


def common_root(roots: Sequence[Path | str]) -> Path | str:
    """The nearest folder or URL that all of these begin with.

    Raises:
        ManifestError: there is none: some are in another bucket, or on this machine.
    """
    if len(set(map(str, roots))) == 1:
        return roots[0]

    if not any(isinstance(root, str) for root in roots):
        return Path(os.path.commonpath(roots))

    # a path and a URL, or URLs of two schemes, have no folder in common
    stores, paths = zip(*(str(root).rpartition("://")[::2] for root in roots), strict=True)
    if len(set(stores)) > 1 or not stores[0] or not (shared := os.path.commonpath(paths)):
        raise ManifestError(
            f"{' and '.join(map(str, roots))} cannot be joined: images in object stores "
            "must be of one bucket; copy the others "
            "there, or all of them here"
        )

    return f"{stores[0]}://{shared}"


def read_shares(sources: Mapping[str, tuple[Any, float]]) -> dict[str, float]:
    """The share of each source of a mixture by its name; their sum is 1.

    Raises:
        ConfigError: the shares are not positive numbers.
    """
    try:
        shares = {name: share for name, (_, share) in sources.items()}
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            'a mixture is made of names, manifests and shares: {"mine": (manifest, 0.3), …}'
        ) from None

    shares = {
        name: float(check_number(f"the share of {name!r}", share, -math.inf, math.inf))
        for name, share in shares.items()
    }
    if not shares or min(shares.values()) <= 0:
        raise ConfigError(f"the shares of the mixture are {shares}; each must be positive")

    total = sum(shares.values())
    return {name: share / total for name, share in shares.items()}


def join_classes(
    names: Sequence[list[str]], apart: bool
) -> tuple[list[str], list[NDArray[np.int64]]]:
    """Joins lists of class names.

    Args:
        apart: whether classes of the same name in two lists stay two classes.

    Returns:
        All names in the order in which they first come, and for each list the new number of each of
        its classes.
    """
    # each set's numbers follow those of the sets before it
    if apart:
        ends = np.cumsum([len(of_set) for of_set in names])
        numbered = [
            np.arange(end - len(of_set), end) for end, of_set in zip(ends, names, strict=True)
        ]
        return [name for of_set in names for name in of_set], numbered

    # files of other programs may have names in another form
    names = [list(map(composed, of_set)) for of_set in names]
    numbers = {
        name: number
        for number, name in enumerate(dict.fromkeys(name for of_set in names for name in of_set))
    }
    return list(numbers), [
        np.array([numbers[name] for name in of_set], np.int64) for of_set in names
    ]


def _join_mask_values(values: Sequence[MaskValues]) -> MaskValues:
    """The meaning of the values of all masks.

    Raises:
        ManifestError: they mean different classes.
    """
    if any(value != values[0] for value in values):
        why = "the values of their masks mean different classes"
        raise ManifestError(
            f"the manifests cannot be joined: {why}; scan them with the same classes and "
            "mask_values"
        )
    return values[0]


def _join_boxes_upright(upright: Sequence[bool]) -> bool:
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


def _join_keypoints(keypoints: Sequence[Keypoints | None]) -> Keypoints | None:
    """The keypoints of all objects.

    Raises:
        ManifestError: they differ.
    """
    if any(keypoint != keypoints[0] for keypoint in keypoints):
        raise ManifestError(
            "manifests with different keypoints cannot be joined; scan them with the same names"
        )
    return keypoints[0]


def _rebase_paths(table: pa.Table, root: Path | str, to: Path | str) -> pa.Table:
    """Makes the paths of a table relative to `to`, which is `root` or above it."""
    if root == to:
        return table

    prefix = os.path.join(os.path.relpath(root, to), "")
    for name in {"path", MASK}.intersection(table.column_names):
        old, kind = table[name], table[name].type
        start, nothing = (pa.scalar(text).cast(kind) for text in (os.fsencode(prefix), b""))
        new = pc.binary_join_element_wise(start, old, nothing)
        # an empty path of a mask says that there is none, and stays empty
        table = replace_column(table, name, pc.if_else(pc.equal(old, nothing), old, new))
    return table


def _concat_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Joins tables into one.

    A table that lacks a column gets NaN for numbers, as for an empty cell, and the empty text for
    texts.

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
        tables = _add_column(tables, name)

    order = tables[0].column_names
    return pa.concat_tables([table.select(order) for table in tables])


def _add_column(tables: Sequence[pa.Table], name: str) -> list[pa.Table]:
    (kind, *others) = {table[name].type for table in tables if name in table.column_names}
    lacking = any(name not in table.column_names for table in tables)

    if lacking and name.startswith(TARGET) and name not in _OPTIONAL_TARGETS:
        label = name.removeprefix(TARGET).removeprefix("image:")
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

    empty = _OPTIONAL_TARGETS.get(name, "")
    if name not in _OPTIONAL_TARGETS and not pa.types.is_large_string(kind):
        # integers become fractions as well, since only these have NaN
        kind, empty = pa.float32(), float("nan")

    def convert(column: pa.ChunkedArray) -> pa.ChunkedArray:
        try:
            return to_float32(column) if pa.types.is_float32(kind) else column.cast(kind)
        except pa.ArrowInvalid as error:
            raise ManifestError(
                f"the column {name.removeprefix(COLUMN)} is not in all manifests ({error}); leave "
                "it out (Manifest.without_columns), or give it to all"
            ) from None

    return [
        replace_column(table, name, convert(table[name]))
        if name in table.column_names
        else table.append_column(name, pa.repeat(pa.scalar(empty, kind), len(table)))
        for table in tables
    ]


def add_source(table: pa.Table, number: int) -> pa.Table:
    """Adds the column by which the samples of a mixture are drawn.

    Raises:
        ManifestError: there is such a column already.
    """
    if COLUMN + SOURCE in table.column_names:
        raise ManifestError(
            f"a manifest to mix has a column {SOURCE!r} already; mix its parts, or rename it"
        )
    return table.append_column(
        COLUMN + SOURCE, pa.repeat(pa.scalar(number, pa.int64()), len(table))
    )
