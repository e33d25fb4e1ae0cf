"""Opens the images of a run, and checks that training and validation have the same labels."""

from typing import Any

from dali_pipes.data.images import open_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.sets.classes import describe_difference
from dali_pipes.errors import ConfigError, ManifestError
from dali_pipes.training.config import NONE, SPLIT, TrainConfig
from dali_pipes.training.tasks.build import count_outputs, name_task

_LISTED = 50  # most classes that an error writes out, to be copied to a command line


def open_both(config: TrainConfig) -> tuple[Manifest, Manifest | None]:
    """Opens the training images, and the validation images if there are to be any.

    Raises:
        ManifestError: there are none, or the classes differ.
        ConfigError: a network cannot learn their labels, or the two have other ones.
    """
    train = _open(config, "train")
    if config.validation == NONE:
        return train, None
    if config.validation.startswith(SPLIT):
        return _split(train, float(config.validation.removeprefix(SPLIT)), config.seed)

    val = open_val(config)
    if train.classes != val.classes:
        raise ManifestError(
            f"{train.root} and {val.root}: {describe_difference(train.classes, val.classes)}; "
            f"{_align(train, val)}"
        )
    if not config.function and count_outputs(train) != count_outputs(val):
        raise ManifestError(
            f"{train.root} has {count_outputs(train)} numbers for each image, and {val.root} has "
            f"{count_outputs(val)}; give both the same"
        )
    return train, val


def open_val(config: TrainConfig) -> Manifest:
    """Opens the validation images, or with validation=split:SHARE that share of the training
    images.

    Raises:
        ManifestError: there are none.
        ConfigError: a network cannot learn their labels, or there are to be none.
    """
    if config.validation == NONE:
        raise ConfigError("validation=none, so there are no images to evaluate; leave it out")
    if config.validation.startswith(SPLIT):
        share = float(config.validation.removeprefix(SPLIT))
        return _split(_open(config, "train"), share, config.seed)[1]
    return _open(config, "val")


def _open(config: TrainConfig, split: str) -> Manifest:
    manifest = open_images(
        config.data, split, max_bad_fraction=config.max_bad_fraction, strict=config.strict
    )
    if not config.function:
        name_task(config, manifest, config.data.source(split))
    return manifest


def _split(manifest: Manifest, share: float, seed: int) -> tuple[Manifest, Manifest]:
    parts = manifest.split({"train": 1 - share, "val": share}, seed=seed)
    for name, part in parts.items():
        if not len(part):
            raise ConfigError(
                f"validation={SPLIT}{share:g} leaves no image for {name}, of {len(manifest):,}; "
                "choose another share"
            )
    return parts["train"], parts["val"]


def _align(train: Manifest, val: Manifest) -> str:
    """Says how to give both the same classes."""
    every = train.classes + [name for name in val.classes if name not in set(train.classes)]
    folder = "or add an empty folder for a class that has no image"
    if len(every) > _LISTED:
        return f"data.classes=[…] names the {len(every):,} classes of both, {folder}"
    return f"data.classes=[{','.join(every)}] gives both the same, {folder}"


def left_out(manifest: Manifest | None) -> list[dict[str, Any]]:
    """Returns what the scan has left out, for a summary."""
    return [] if manifest is None else [each._asdict() for each in manifest.omissions]
