"""Opens the images of a run, and checks that training and validation have the same labels."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.images import open_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.omissions import refuse
from dali_pipes.data.sets.choosing import choose_parts
from dali_pipes.data.sets.classes import describe_difference
from dali_pipes.data.sets.common import find_common
from dali_pipes.data.sets.same_images import number_files
from dali_pipes.errors import ConfigError, ManifestError
from dali_pipes.options import quote
from dali_pipes.training.config import FROM_DATA, NONE, SPLIT, TrainConfig, split_share
from dali_pipes.training.tasks.build import count_outputs, name_task

# names of classes that need no quotes in a list
_PLAIN, _VALUES = re.compile(r"[^\W\d][\w.-]*"), {"null", "true", "false", "nan", "inf"}
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
    if (share := split_share(config.validation)) is not None:
        return _split(train, share, config.seed)

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
    # `build_loader` warns of them; here they are refused, or kept for the summary
    if common := find_common(train, val):
        if config.strict:
            refuse(val.root, len(val), [common])
        doubts = [*(val.facts.doubts or ()), common]
        val = replace(val.with_facts(doubts=doubts), is_told=True)
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
    if (share := split_share(config.validation)) is not None:
        return _split(_open(config, "train"), share, config.seed)[1]
    return _open(config, "val")


def open_untrained(
    config: TrainConfig, state: Mapping[str, Any], path: Path
) -> tuple[Manifest, str | None]:
    """Opens the images to evaluate a checkpoint on, as `open_val`.

    Args:
        state: of the checkpoint `path`.

    Returns:
        The images, and what is to be said of them.

    Raises:
        ConfigError: they are drawn from the images of the run, and it was trained on some of them.
    """
    if (share := split_share(config.validation)) is None:
        return open_val(config), None
    images = _open(config, "train")
    val = _split(images, share, config.seed)[1]

    # The run's own draw, made again: if its training images come out, these are its images. Earlier
    # versions kept no options, and drew nothing.
    kept = state.get("options", {})
    validation, seed = kept.get("validation", FROM_DATA), kept.get("seed", 0)
    then = split_share(validation)
    trained = np.arange(len(images)) if then is None else _draw(images, then, seed)["train"]
    if images.subset(trained).fingerprint != state["loader"]["fingerprint"]["manifest"]:
        return val, (
            f"these are not the images that the run of {path} had; whether it was trained on some "
            "of them is not known"
        )

    drawn = _draw(images, share, config.seed)["val"]
    if common := len(np.intersect1d(trained, drawn)):
        raise ConfigError(
            f"{path} was trained on {common:,} of the {len(drawn):,} images that "
            f"validation={config.validation}, seed={config.seed} draws, since its run had "
            f"validation={validation}, seed={seed}; give the same, or other images by data.val"
        )
    return val, None


def _open(config: TrainConfig, split: str) -> Manifest:
    manifest = open_images(
        config.data, split, max_bad_fraction=config.max_bad_fraction, strict=config.strict
    )
    if not config.function:
        name_task(config, manifest, config.data.source(split))
    return manifest


def _draw(manifest: Manifest, share: float, seed: int) -> dict[str, NDArray[np.int64]]:
    files = number_files(manifest)
    return choose_parts({"train": 1 - share, "val": share}, files, seed)


def _split(manifest: Manifest, share: float, seed: int) -> tuple[Manifest, Manifest]:
    parts = {name: manifest.subset(ids) for name, ids in _draw(manifest, share, seed).items()}
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
    return f"{spell_classes(every)} gives both the same, {folder}"


def spell_classes(names: Sequence[str]) -> str:
    """The option data.classes as a shell takes it."""
    plain = [bool(_PLAIN.fullmatch(name)) and name.lower() not in _VALUES for name in names]
    parts = [name if is_plain else quote(name) for name, is_plain in zip(names, plain, strict=True)]
    word = f"data.classes=[{','.join(parts)}]"
    return word if all(plain) else shlex.quote(word)


def left_out(manifest: Manifest | None) -> list[dict[str, Any]]:
    """Returns what the scan has left out, for a summary."""
    return [] if manifest is None else [each._asdict() for each in manifest.omissions]
