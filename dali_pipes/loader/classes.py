"""Training and evaluation in one program: a class number must mean the same class in both."""

import os
import weakref
from typing import Any

from dali_pipes.data.manifest import Manifest
from dali_pipes.data.scanning.splits import split_of
from dali_pipes.data.sets import describe_difference
from dali_pipes.errors import ManifestError

# The images of the training and of the evaluation loaders of this process.
_trained_on: "weakref.WeakSet[Manifest]" = weakref.WeakSet()
_evaluated_on: "weakref.WeakSet[Manifest]" = weakref.WeakSet()


def refuse_other_classes(manifest: Manifest, training: bool) -> None:
    """Raises ManifestError for images to evaluate on, of the set that is trained on, if a class has
    another number in them.

    It is the same set if both lie in one folder, or in folders of two splits beside each other,
    such as train and val. Images of another set may have other classes.
    """
    # another thread may build a loader meanwhile
    for other in list(_evaluated_on if training else _trained_on):
        trained, evaluated = (manifest, other) if training else (other, manifest)
        if _are_of_one_set(trained, evaluated) and _clash(trained.classes, evaluated.classes):
            raise ManifestError(
                f"{trained.root} and {evaluated.root}: "
                f"{describe_difference(trained.classes, evaluated.classes)}; give both the "
                "same: Manifest.scan(…, classes=train.classes), or "
                "manifest.with_classes(train.classes)"
            )
    (_trained_on if training else _evaluated_on).add(manifest)


def _are_of_one_set(first: Manifest, second: Manifest) -> bool:
    roots = [os.fspath(each.root).rstrip("/") for each in (first, second)]
    if roots[0] == roots[1]:
        return True
    splits = [split_of(root.rpartition("/")[2]) for root in roots]
    return (
        roots[0].rpartition("/")[0] == roots[1].rpartition("/")[0]
        and None not in splits
        and splits[0] != splits[1]
    )


def _clash(first: list[str], second: list[str]) -> bool:
    """Whether a class that both have has two numbers."""
    numbers: dict[str, Any] = {name: number for number, name in enumerate(first)}
    return any(numbers.get(name, number) != number for number, name in enumerate(second))
