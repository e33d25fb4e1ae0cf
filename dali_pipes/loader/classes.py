"""Training and evaluation in one program: a class number must mean the same class in both."""

import os
import weakref
from typing import Any

from dali_pipes.data.manifest import Manifest
from dali_pipes.data.scanning.splits import split_of
from dali_pipes.data.sets import describe_difference
from dali_pipes.errors import ManifestError

_trained_on: "weakref.WeakSet[Manifest]" = weakref.WeakSet()  # the images of the training loaders of this process


def refuse_other_classes(manifest: Manifest, training: bool) -> None:
    """Raises ManifestError for images to evaluate on, of the set that is trained on, if a class has another number in them.

    It is the same set if both lie in one folder, or in folders of two splits beside each other, such as train and val. Images of
    another set may have other classes.
    """
    if training:
        _trained_on.add(manifest)
        return
    for trained in _trained_on:
        if _are_of_one_set(trained, manifest) and _clash(trained.classes, manifest.classes):
            raise ManifestError(
                f"{trained.root} and {manifest.root}: {describe_difference(trained.classes, manifest.classes)}; give both the "
                "same: Manifest.scan(…, classes=train.classes), or manifest.with_classes(train.classes)"
            )


def _are_of_one_set(first: Manifest, second: Manifest) -> bool:
    roots = [os.fspath(each.root).rstrip("/") for each in (first, second)]
    if roots[0] == roots[1]:
        return True
    splits = [split_of(root.rpartition("/")[2]) for root in roots]
    return roots[0].rpartition("/")[0] == roots[1].rpartition("/")[0] and None not in splits and splits[0] != splits[1]


def _clash(first: list[str], second: list[str]) -> bool:
    """Whether a class that both have has two numbers."""
    numbers: dict[str, Any] = {name: number for number, name in enumerate(first)}
    return any(numbers.get(name, number) != number for number, name in enumerate(second))
