"""Other images from images: what `Manifest.subset`, `filter`, `split`, `concat`, `mix` and the
changes of classes do. Functions take and return `ImageTable`s.

- `subset` takes samples in any order; `choose` takes samples that stand for the whole, as filters
  and splits do; `choose_parts` and `group_numbers` say which samples are in which part.
- `concat` joins images: their roots, classes and tables, and what is known of them, which is
  refused where it means different things.
- `give_classes` and `renumber` change the classes, and `drop_columns` leaves out columns.
"""

import math
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.checks import check_number, describe_value
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.keypoints import Keypoints
from dali_pipes.data.labels import COLUMN
from dali_pipes.data.mask_values import MaskValues
from dali_pipes.data.objects import TARGET
from dali_pipes.data.omissions import merge
from dali_pipes.data.table.changes import concat_tables, rebase_paths, renumber_classes
from dali_pipes.data.table.samples import Samples
from dali_pipes.errors import ConfigError, ManifestError
from dali_pipes.system.hashing import GOLDEN, splitmix64


def subset(images: ImageTable, ids: Any) -> ImageTable:
    """These samples only, numbered anew in the given order.

    Raises:
        ConfigError: there is no such id, or these are not ids.
    """
    ids = np.asarray(ids)
    if ids.ndim != 1:
        raise ConfigError(
            f"subset takes a list of sample ids, not {ids.ndim} dimensions; of one image "
            "manifest.subset([ID])"
        )

    if ids.dtype.kind not in "iu" and ids.size:
        raise ConfigError(
            f"subset takes sample ids, not {ids.dtype}; of a mask np.flatnonzero makes ids"
        )

    ids = ids.astype(np.int64)
    if ids.size and not (ids.min() >= 0 and ids.max() < len(images)):
        raise ConfigError(
            f"subset: ids run from 0 to {len(images) - 1}, and one is "
            f"{ids.min() if ids.min() < 0 else ids.max()}"
        )
    return images.select(ids)


def choose(images: ImageTable, ids: NDArray[np.int64]) -> ImageTable:
    """Chooses these samples to stand for the whole.

    What is left out of the whole counts as left out of them too, for `strict` and limits.
    """
    return images.select(ids).with_facts(
        parent_omissions=images.of_whole or images.omissions,
        parent_bad_images=images.bad_of_whole,
    )


def choose_parts(
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
            f"fractions is {describe_value(fractions)}; it takes names and shares, such as "
            '{"train": 0.9, "val": 0.1}'
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


def concat(sets: Sequence[ImageTable], apart: bool) -> ImageTable:
    """Joins images: their samples one after the other, under the nearest common folder.

    Args:
        sets: one at least.
        apart: whether classes of the same name in two sets stay two classes.

    Raises:
        ManifestError: some are in another store, or labels, columns or targets mean different
            things.
    """
    root = common_root([images.root for images in sets])
    classes, numbers = join_classes([images.classes for images in sets], apart)
    facts = _join_facts(sets, classes, numbers)

    def join(tables: list[pa.Table]) -> pa.Table:
        return concat_tables(
            [
                renumber_classes(rebase_paths(table, images.root, root), new)
                for images, table, new in zip(sets, tables, numbers, strict=True)
            ]
        )

    files = tuple(file for images in sets for file in images.samples.files)
    samples = Samples(join([images.samples.table() for images in sets]), files)
    return ImageTable(root, classes, samples, join([images.others for images in sets]), facts)


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
                omission for images in sets for omission in images.of_whole or images.omissions
            ),
            "parent_bad_images": (sum(bad), sum(total)),
        }

    return ManifestFacts(
        # 0 if one is from version 0.2, which does not say what it left out
        rules=min(facts.rules for facts in every),
        omissions=merge(omission for images in sets for omission in images.passed_over),
        keypoints=keypoints,
        names_flip_pairs=all(facts.names_flip_pairs for facts in every),
        masks_upright=every[0].masks_upright,
        boxes_upright=boxes_upright,
        category_ids=every[0].category_ids if is_alike else None,
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


def give_classes(images: ImageTable, classes: Sequence[str]) -> ImageTable:
    """The same samples with these classes and their numbers.

    Raises:
        ManifestError: an image has a class that is none of them.
    """
    names = list(classes)
    if names == images.classes:
        return images

    used: NDArray[Any] = np.zeros(0)
    if images.task != "regression":
        used = np.unique(images.labels[images.labels >= 0])
    # which values masks have is not known, so each class counts as used
    if images.facts.mask_values.named:
        used = np.arange(len(images.classes))

    numbers = match_classes(names, images.classes, used.astype(np.int64), images.root)
    return renumber(images, numbers, names)


def renumber(images: ImageTable, numbers: NDArray[np.int64], classes: list[str]) -> ImageTable:
    """The same samples with other class numbers: n becomes numbers[n]."""
    facts: dict[str, Any] = {}
    if images.has_target("mask"):
        facts["mask_values"] = images.facts.mask_values.renumber(numbers)
    if images.facts.category_ids is not None:
        facts["category_ids"] = renumber_categories(
            images.facts.category_ids, numbers, len(classes)
        )
    changed = images.map_tables(partial(renumber_classes, numbers=numbers), classes)
    return changed.with_facts(**facts)


def drop_columns(images: ImageTable, names: Sequence[str]) -> ImageTable:
    """The same samples without some columns of their table, or the targets "text" and "mask"."""
    targets = [
        TARGET + name
        for name in ("text", "mask", "mask_offset", "mask_bytes")
        if name.split("_")[0] in names
    ]
    left_out = {*targets, *(COLUMN + name for name in names)}
    changed = images.map_tables(
        lambda table: table.drop_columns([name for name in table.column_names if name in left_out])
    )

    # an index with these rows would not be what its options say
    changed = changed.with_facts(reading={})
    return changed.with_facts(mask_values=MaskValues({}, False)) if "mask" in names else changed


def match_classes(
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


def renumber_categories(
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
