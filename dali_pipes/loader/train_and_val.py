"""Checks that the training and the evaluation images of one program fit: a class number means the
same class in both, and no image is in both.
"""

import logging
import os
import weakref
from typing import Any

from dali_pipes.data.manifest import Manifest
from dali_pipes.data.omissions import describe
from dali_pipes.data.sets.classes import describe_difference
from dali_pipes.data.sets.common import find_common
from dali_pipes.data.sources.names import split_of
from dali_pipes.errors import ManifestError

log = logging.getLogger(__name__)

# The images of the training and of the evaluation loaders of this process.
_trained_on: "weakref.WeakSet[Manifest]" = weakref.WeakSet()
_evaluated_on: "weakref.WeakSet[Manifest]" = weakref.WeakSet()

# Of which evaluation images it was said that some training images are among them.
_told: "weakref.WeakKeyDictionary[Manifest, weakref.WeakSet[Manifest]]" = (
    weakref.WeakKeyDictionary()
)


def check_fit(manifest: Manifest, training: bool) -> None:
    """Compares the images of a new loader with those of the others.

    Warns once of images that are in the training and in the evaluation images.

    Raises:
        ManifestError: images for training and images for evaluation belong to one set, and a class
            has different numbers in them. They belong to one set if both are in one folder, or in
            folders of two splits beside each other, such as train and val. Images of another set
            may have other classes.
    """
    # list(): another thread may build a loader meanwhile, and add to the set
    for other in list(_evaluated_on if training else _trained_on):
        trained, evaluated = (manifest, other) if training else (other, manifest)
        if _are_of_one_set(trained, evaluated) and _clash(trained.classes, evaluated.classes):
            raise ManifestError(
                f"{trained.root} and {evaluated.root}: "
                f"{describe_difference(trained.classes, evaluated.classes)}; give both the "
                "same: Manifest.scan(…, classes=train.classes), or "
                "manifest.with_classes(train.classes)"
            )
        _tell_common(trained, evaluated)
    (_trained_on if training else _evaluated_on).add(manifest)


def _tell_common(trained: Manifest, evaluated: Manifest) -> None:
    told = _told.setdefault(evaluated, weakref.WeakSet())
    if trained in told or int(os.environ.get("LOCAL_RANK", 0)):
        return
    told.add(trained)
    if common := find_common(trained, evaluated):
        log.warning("%s", describe(evaluated.root, len(evaluated), [common]))


def _are_of_one_set(first: Manifest, second: Manifest) -> bool:
    roots = [os.fspath(manifest.root).rstrip("/") for manifest in (first, second)]
    if roots[0] == roots[1]:
        return True

    splits = [split_of(root.rpartition("/")[2]) for root in roots]
    return (
        roots[0].rpartition("/")[0] == roots[1].rpartition("/")[0]
        and None not in splits
        and splits[0] != splits[1]
    )


def _clash(first: list[str], second: list[str]) -> bool:
    """Whether a class that is in both lists has two numbers, or is written in two ways."""
    numbers: dict[str, Any] = {name: number for number, name in enumerate(first)}
    if any(numbers.get(name, number) != number for number, name in enumerate(second)):
        return True
    folded = {name.casefold(): name for name in first}
    return any(folded.get(name.casefold(), name) != name for name in second if name not in numbers)
