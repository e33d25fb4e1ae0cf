"""Reads steps that a plan does on the whole image, before it cuts out a region: `before` of a
transform.
"""

from typing import Any

from dali_pipes.adapters.from_torch.readers.albumentations import Alike
from dali_pipes.adapters.from_torch.readers.common import check_fill, describe_options, refuse_after
from dali_pipes.adapters.from_torch.readers.geometry import (
    check_size,
    read_interpolation,
    read_sides,
)
from dali_pipes.adapters.from_torch.reading import Reading, refuse_unless

# those of them that have a probability of their own
_OF_CHANCE = ("RandomPerspective", "RandomHorizontalFlip", "RandomVerticalFlip")


def read_resize(reading: Reading, step: Any) -> str:
    if isinstance(step, Alike):
        return _note_plain_resize(reading, step)

    check_size(step)
    kind, note = read_interpolation(reading, step)
    size, kind = read_sides(step), kind.removesuffix("-exact")
    reading.settled = None if isinstance(size, int) else size
    return _note_whole(reading, step, size=size, interpolation=kind) + note


def read_smallest(reading: Reading, step: Any) -> str:
    return _note_plain_resize(reading, step, rounding="nearest")


def _note_plain_resize(reading: Reading, step: Any, **options: Any) -> str:
    """Notes a resize of albumentations."""
    size = read_sides(step)
    reading.settled = None if isinstance(size, int) else size
    options = {"name": "Resize", "size": size, "antialias": False, **options}
    return f"{_note_whole(reading, step, **options)}, as OpenCV resizes"


def read_rotation(reading: Reading, step: Any) -> str:
    refuse_unless(not step.expand, "RandomRotation", "expand is set", "leave it out")
    return _note_warp(reading, step, degrees=_floats(step.degrees))


def read_affine(reading: Reading, step: Any) -> str:
    options = {
        name: _floats(value)
        for name in ("translate", "scale", "shear")
        if (value := getattr(step, name)) is not None
    }
    return _note_warp(reading, step, degrees=_floats(step.degrees), **options)


def read_perspective(reading: Reading, step: Any) -> str:
    scale = float(step.distortion_scale)
    return _note_warp(reading, step, distortion_scale=scale, p=float(step.p))


def read_flip(reading: Reading, step: Any) -> str:
    return _note_whole(reading, step, p=float(step.p))


def _note_warp(reading: Reading, step: Any, **options: Any) -> str:
    """Reads what rotations, affine and perspective steps have in common."""
    name, mode = type(step).__name__, str(getattr(step.interpolation, "value", step.interpolation))
    known = ("nearest", "bilinear", "bicubic")
    refuse_unless(mode in known, name, f"interpolation={mode}", f"use {', '.join(known)}")
    check_fill(step, name)
    centred = getattr(step, "center", None) is None
    refuse_unless(centred, name, "center is set", "leave it out")

    # torchvision moves tensors by another function, which blends edges with black
    edges = "and at the edges " if mode != "nearest" else ""
    note = f"; of PIL images, which differs {edges}in a few pixels from that of tensors"
    return _note_whole(reading, step, **options, interpolation=mode) + note * reading.tensor


def _note_whole(reading: Reading, step: Any, **options: Any) -> str:
    """Notes a step of `before` with its options."""
    from torchvision import transforms

    wrong = reading.floats or reading.augment or reading.erased
    refuse_after(wrong or reading.crop, step, "ToTensor, augmentation or a crop")
    name = options.pop("name", type(step).__name__)
    p = reading.applied * options.pop("p", 1.0)
    options |= {"p": p} if p < 1 or name in _OF_CHANCE else {}
    reading.before.append({"name": name, **options})
    chance = transforms.RandomApply([step], reading.applied)
    reading.whole.append(chance if reading.applied < 1 else step)
    return f"before: {name}({describe_options(options)}) on the whole image"


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))
