"""The images of a run, and the check that training and validation have the same classes."""

from collections.abc import Sequence

from dali_pipes.data.config import DataConfig
from dali_pipes.data.images import open_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError, ManifestError


def open_both(data: DataConfig) -> tuple[Manifest, Manifest]:
    """The training and the validation images.

    Raises:
        ManifestError: there are none, or the classes differ.
        ConfigError: their labels are not one class each.
    """
    train, val = (open_classified(data, split) for split in ("train", "val"))
    if train.classes != val.classes:
        raise ManifestError(f"{train.root} and {val.root}: {difference(train.classes, val.classes)}")
    return train, val


def open_classified(data: DataConfig, split: str) -> Manifest:
    """The images of "train" or "val", each of one class.

    Raises:
        ManifestError: there are none.
        ConfigError: they have other labels.
    """
    manifest = open_images(data, split)
    if manifest.task != "classification":
        raise ConfigError(
            f"{data.source(split)}: {_labels(manifest)}, and this trains on one class for each image; "
            "write a training loop around dali_pipes.build_loader, which delivers them (docs/targets.md), as examples/detection "
            "and examples/segmentation do for boxes and masks"
        )
    return manifest


def _labels(manifest: Manifest) -> str:
    """What the images have that are not of one class each."""
    if there := [name for name in ("boxes", "mask") if manifest.has_target(name)]:
        return f"its images have {' and '.join(there).replace('mask', 'masks')}"
    if manifest.task == "multilabel":
        return "its labels are several classes each" if manifest.labels.size else "its images have no labels"
    return "its labels are numbers to predict"


def difference(first: Sequence[str], second: Sequence[str]) -> str:
    """How two lists of classes differ, in a few words."""
    only = [[name for name in one if name not in set(other)] for one, other in ((first, second), (second, first))]
    differences = [
        f"{len(names)} only in the {which} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for names, which in zip(only, ("first", "second"), strict=True)
        if names
    ]
    return f"not the same classes: {'; '.join(differences) or 'another order'}; a label would mean two things"
