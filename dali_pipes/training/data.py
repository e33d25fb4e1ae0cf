"""Opens the images of a run, and checks that each has one class, and that training and validation
have the same classes.
"""

from typing import Any

from dali_pipes.data.config import DataConfig
from dali_pipes.data.images import open_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.sets.classes import describe_difference
from dali_pipes.errors import ConfigError, ManifestError

_LISTED = 50  # most classes that an error writes out, to be copied to a command line


def open_both(data: DataConfig, **checks: Any) -> tuple[Manifest, Manifest]:
    """Opens the training and the validation images.

    Args:
        checks: max_bad_fraction and strict as for `open_images`.

    Raises:
        ManifestError: there are none, or the classes differ.
        ConfigError: their labels are not one class each.
    """
    train, val = (open_classified(data, split, **checks) for split in ("train", "val"))
    if train.classes != val.classes:
        raise ManifestError(
            f"{train.root} and {val.root}: {describe_difference(train.classes, val.classes)}; "
            f"{_align(train, val)}"
        )
    return train, val


def _align(train: Manifest, val: Manifest) -> str:
    """Says how to give both the same classes."""
    every = train.classes + [name for name in val.classes if name not in set(train.classes)]
    folder = "or add an empty folder for a class that has no image"
    if len(every) > _LISTED:
        return f"data.classes=[…] names the {len(every):,} classes of both, {folder}"
    return f"data.classes=[{','.join(every)}] gives both the same, {folder}"


def open_classified(data: DataConfig, split: str, **checks: Any) -> Manifest:
    """Opens the images of "train" or "val", each of one class.

    Raises:
        ManifestError: there are no images.
        ConfigError: the images have other labels.
    """
    manifest = open_images(data, split, **checks)
    if manifest.task != "classification":
        raise ConfigError(
            f"{data.source(split)}: {_labels(manifest)}, and this trains on one class for "
            "each image; "
            "write a training loop around dali_pipes.build_loader, which delivers them "
            "(docs/targets.md), as examples/detection "
            "and examples/segmentation do for boxes and masks"
        )
    return manifest


def _labels(manifest: Manifest) -> str:
    """Says what the images have instead of one class each."""
    if there := [name for name in ("boxes", "mask") if manifest.has_target(name)]:
        return f"its images have {' and '.join(there).replace('mask', 'masks')}"
    if manifest.task == "multilabel":
        return (
            "its labels are several classes each"
            if manifest.labels.size
            else "its images have no labels"
        )
    return "its labels are numbers to predict"


def left_out(manifest: Manifest) -> list[dict[str, Any]]:
    """Returns what the scan has left out, for a summary."""
    return [omission._asdict() for omission in manifest.omissions]
