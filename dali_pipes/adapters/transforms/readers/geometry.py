"""Reads the geometry that a plan has itself: one resize, one crop, flips."""

from typing import Any

from dali_pipes.adapters.transforms.readers.albumentations import Alike
from dali_pipes.adapters.transforms.readers.common import (
    KEEP,
    StepReader,
    describe_options,
    read_padding,
    refuse_after,
)
from dali_pipes.adapters.transforms.reading import (
    NotConvertibleError,
    Size,
    TransformReading,
    refuse_unless,
)
from dali_pipes.plan.transforms.base import RANDOM


def read_resize(reading: TransformReading, step: Any) -> str:
    _check_place(reading, step)
    refuse_after(
        reading.crop or reading.resize is not None, step, "a resize or a crop", "resize once, first"
    )
    check_size(step)

    note = _note_interpolation(reading, step)
    reading.resize = read_sides(step)
    return f"resize={reading.resize}, {reading.interpolation}{note}"


def check_size(step: Any) -> None:
    refuse_unless(
        step.max_size is None,
        "Resize",
        "max_size leaves images of many sizes",
        "add a crop and leave max_size out",
    )
    refuse_unless(step.size is not None, "Resize", "it has no size", "give it one")


def read_sides(step: Any) -> Size:
    """The size of a Resize: the length of the shorter side, or height and width."""
    sides = [step.size] if isinstance(step.size, int) else [int(each) for each in step.size]
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def read_smallest_alone(reading: TransformReading, step: Any) -> str:
    """Refuses albumentations' SmallestMaxSize, which is read on the whole image only."""
    raise NotConvertibleError(
        "albumentations' SmallestMaxSize",
        "no crop comes after it, so images keep their own sizes and make no batch",
        "add RandomCrop",
    )


def read_center_crop(reading: TransformReading, step: Any) -> str:
    # before a random crop it makes no difference
    flipped = {"flip_before_crop": True} if reading.flips else {}
    return f"central crop, {_note_crop(reading, step, 'center', **flipped)}"


def _check_room(reading: TransformReading, step: Any) -> None:
    """Checks that albumentations' CenterCrop is torchvision's, which rounds halves to even."""
    whole, name = reading.resize or reading.settled, "albumentations' CenterCrop"
    if not isinstance(whole, tuple):
        raise NotConvertibleError(name, "no Resize is before it", "resize to (height, width)")
    room = [before - after for before, after in zip(whole, step.size, strict=True)]
    refuse_unless(
        all(each >= 0 and each % 4 != 3 for each in room),
        name,
        f"it cuts {room} pixels off, of which it leaves the odd one at the end",
        "cut an even number of pixels off",
    )


def refuse_crops(reading: TransformReading, step: Any) -> str:
    name = type(step).__name__
    raise NotConvertibleError(
        name,
        "what follows it gets several images",
        f"use dp.TenCropTransform; {KEEP}",
    )


def read_resized_crop(reading: TransformReading, step: Any) -> str:
    wrong = "it comes after a Resize, which makes two resizings, and a plan has one"
    instead = f"remove the Resize if your training may change so (1 line); {KEEP}"
    refuse_unless(reading.resize is None, type(step).__name__, wrong, instead)

    note = _note_interpolation(reading, step)
    made = _note_crop(reading, step, "resized", scale=tuple(step.scale), ratio=tuple(step.ratio))
    return f"TrainTransform: {made}, {reading.interpolation}{note}"


def read_random_crop(reading: TransformReading, step: Any) -> str:
    # with other padding than black it comes in two parts (whole.split_crop)
    padding = read_padding(step)

    # flipped first, the wider margin would be on the other side
    turned = (
        reading.flips
        and isinstance(padding, tuple)
        and len(padding) == 4
        and padding[:2] != padding[2:]
    )
    refuse_unless(
        not turned,
        "RandomCrop",
        "its padding is lopsided, and a flip comes before it",
        "flip after the crop",
    )

    made = _note_crop(
        reading, step, "random", padding=padding, pad_if_needed=bool(step.pad_if_needed)
    )
    return f"RandomCropTransform: {made}"


def _note_crop(reading: TransformReading, step: Any, kind: str, **options: Any) -> str:
    """Reads what all crops have in common.

    Args:
        kind: "center", "resized" or "random", as `TransformReading.built` knows it.
        options: our transform's options for this kind, without the size.
    """
    _check_place(reading, step)
    name = type(step).__name__
    refuse_unless(
        not reading.crop,
        name,
        "it is the second crop, and a plan has one",
        f"crop once if your training may change so; {KEEP}",
    )

    if kind == "center" and isinstance(step, Alike):
        _check_room(reading, step)
    reading.crop, reading.options = kind, {"size": _simplify_size(step.size), **options}
    return describe_options(reading.options)


def _simplify_size(size: Any) -> Size:
    """Returns a size as one number if its sides are equal, else as (height, width)."""
    if isinstance(size, int):
        return size
    height, width = (int(each) for each in (size if len(size) == 2 else [size[0]] * 2))
    return height if height == width else (height, width)


def make_flip_reader(option: str) -> StepReader:
    def read(reading: TransformReading, step: Any) -> str:
        refuse_unless(
            option not in reading.flips,
            type(step).__name__,
            "it is there twice",
            "flip once, with the probability p + q - 2 p q (1 line)",
        )
        refuse_unless(
            not reading.options.get("flip_before_crop"),
            type(step).__name__,
            "it comes after CenterCrop, and the other flip before it",
            "put both on one side",
        )
        # after colours and blur it makes no difference, so these may come before it
        moved = reading.affine or reading.erased or reading.has_functions
        refuse_after(moved, step, "an operation that moves pixels")
        reading.flips[option] = float(step.p)
        return f"{option}={step.p}"

    return read


def _check_place(reading: TransformReading, step: Any) -> None:
    """Checks the place of a step that moves pixels."""
    refuse_after(
        reading.floats or reading.augment or reading.erased, step, "ToTensor or augmentation"
    )


def _note_interpolation(reading: TransformReading, step: Any) -> str:
    """Reads the interpolation of the plan's resize, and returns how it differs for tensors."""
    # timm's "random", one of the two with equal chances
    choices = step.interpolation
    if isinstance(choices, (tuple, list)) and not reading.tensor:
        kinds = sorted(str(getattr(mode, "value", mode)) for mode in choices)
        if kinds == ["bicubic", "bilinear"]:
            reading.interpolation = RANDOM
            return ""
    if isinstance(step, Alike):
        mode: str = vars(step)["interpolation"]
        reading.interpolation, reading.antialias = mode, False
        return ", antialias=False as OpenCV resizes"
    reading.interpolation, note = read_interpolation(reading, step)
    return note


def read_interpolation(reading: TransformReading, step: Any) -> tuple[str, str]:
    """Returns the interpolation of a resize, and how a plan's differs from it for tensors."""
    name, mode = type(step).__name__, step.interpolation
    refuse_unless(
        not isinstance(mode, (tuple, list)),
        name,
        "its interpolation is random, and not of bilinear and bicubic for PIL images",
        f"choose bilinear or bicubic if your training may change so (1 line); {KEEP}",
    )

    kind = str(getattr(mode, "value", mode))
    # Pillow, which resizes PIL images, takes the pixel at the centre; torchvision calls that
    # nearest-exact
    if kind == "nearest" and not reading.tensor:
        kind = "nearest-exact"
    known = kind in ("bilinear", "bicubic", "nearest-exact")
    refuse_unless(known, name, f"interpolation={kind}", "choose bilinear, bicubic or nearest-exact")

    # PIL images are always antialiased; for tensors it is an option of the step
    smooth = (
        kind == "nearest-exact" or not reading.tensor or getattr(step, "antialias", True) is True
    )
    refuse_unless(
        smooth,
        name,
        "antialias=False aliases, and this plan's resize does not",
        "set antialias=True",
    )

    if not reading.tensor:
        return kind, ""
    where = "half-way between two pixels" if kind == "nearest-exact" else "in the last bits"
    return kind, f"; of PIL images, which differs from that of tensors {where}"
