"""Other classes for the same samples: `give_classes` finds the number of each class in a list that
a user gives, and `renumber` changes the numbers.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.checks import check_names
from dali_pipes.data.composed import composed
from dali_pipes.data.doubts import is_of_names
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.labels.reader import distinct_labels, number_names
from dali_pipes.data.objects import BOX_LABELS
from dali_pipes.data.table.schema import replace_column
from dali_pipes.errors import ManifestError
from dali_pipes.options import propose_name

T = TypeVar("T", bound=ImageTable)


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


def give_classes(images: T, classes: Sequence[str]) -> T:
    """The same samples with these classes and their numbers.

    Raises:
        ConfigError: the classes are not names, or one is there twice.
        ManifestError: an image has a class that is none of them, or the labels are no classes.
    """
    # names that are there twice are right only where sets were joined with their classes apart
    if isinstance(classes, (list, tuple)) and list(classes) == images.classes:
        return _without_doubts_of_names(images)
    names = check_names("classes", classes)
    if images.task == "regression":
        raise ManifestError(
            f"{images.root}: the labels are numbers to predict, which have no classes; leave out "
            "classes"
        )

    # a class that no image has may be missing in the new list
    used: NDArray[Any] = np.unique(images.labels[images.labels >= 0])
    # which values masks have is not known, so each class counts as used
    if images.facts.mask_values.named:
        used = np.arange(len(images.classes))

    numbers = match_classes(names, images.classes, used.astype(np.int64), images.root)
    return renumber(images, numbers, names)


def renumber(images: T, numbers: NDArray[np.int64], classes: list[str]) -> T:
    """The same samples with other class numbers: n becomes numbers[n]."""
    facts: dict[str, Any] = {}
    if images.has_target("mask"):
        facts["mask_values"] = images.facts.mask_values.renumber(numbers)
    if images.facts.category_ids is not None:
        facts["category_ids"] = renumber_categories(
            images.facts.category_ids, numbers, len(classes)
        )
    # where only names change, rows that are mapped from a file stay so
    if np.array_equal(numbers, np.arange(len(numbers))):
        changed = replace(images, classes=classes, facts=images.facts.of_same_samples())
    else:
        changed = images.map_tables(partial(renumber_classes, numbers=numbers), classes)
    changed = changed.with_facts(**facts)
    return _without_doubts_of_names(changed)


def renumber_classes(table: pa.Table, numbers: NDArray[np.int64]) -> pa.Table:
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


def _without_doubts_of_names(images: T) -> T:
    """The same images, whose classes somebody has named."""
    kept = {
        name: [each for each in told if not is_of_names(each)]
        for name in ("doubts", "parent_omissions")
        if any(map(is_of_names, told := getattr(images.facts, name) or []))
    }
    return images.with_facts(**kept) if kept else images


def match_classes(
    new_names: list[str], names: list[str], used: NDArray[np.int64], place: Path | str
) -> NDArray[np.int64]:
    """Finds the number in `new_names` of each class in `names`; -1 for one that no image has.

    Classes without names, which are called by their numbers, keep these numbers.

    Args:
        used: numbers of the classes that images have.
        place: the data set, for error messages.

    Raises:
        ManifestError: an image has a class that is none of the given ones.
    """
    # numbers instead of names: the user's list names them in their order, unless it has numbers too
    names = list(map(composed, names))
    are_numbers = names == number_names(len(names))
    if are_numbers and all(map(str.isdecimal, new_names)):  # "01" is 1
        values = [str(int(name)) for name in new_names]
        has_all = {names[number] for number in used.tolist()} <= set(values)
        if has_all and len(set(values)) == len(values):
            new_names = values
    some = set(names) & set(new_names)
    if are_numbers and len(some) < len(names) and not (some and all(map(str.isdecimal, new_names))):
        if used.max(initial=-1) >= len(new_names):
            raise ManifestError(
                f"{place}: an image has the class number {used.max()}, and classes names "
                f"{len(new_names)}"
            )
        return np.arange(len(names))

    numbers = {name: number for number, name in enumerate(new_names)}
    if unknown := [names[number] for number in used.tolist() if names[number] not in numbers]:
        meant = propose_name(unknown[0], new_names)
        raise ManifestError(
            f"{place}: images of {len(unknown):,} classes that are none of the "
            f"{len(new_names):,} given as classes, "
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
    of = {int(number): category for number, category in zip(numbers, ids, strict=True)}
    return [of.get(number) for number in range(classes)]
