"""Reads steps that a plan does on the whole image, before it cuts out a region: `before` of a
transform. Also sizes, fills and paddings, which steps of the plan's own geometry have as well.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dali_pipes.adapters.transforms.reading import (
    Alike,
    Size,
    StepReader,
    TransformReading,
    describe_options,
    is_of,
    refuse_after,
    refuse_unless,
)
from dali_pipes.plan.steps.whole import WholePad

_FLIPS = ("RandomHorizontalFlip", "RandomVerticalFlip")
# those of them that have a probability of their own
_OF_CHANCE = ("RandomPerspective", *_FLIPS)
_MODES = ("nearest", "bilinear", "bicubic")


def read_resize(reading: TransformReading, step: Any) -> str:
    check_size(step)
    kind, note = read_interpolation(reading, step)
    size, kind = read_sides(step), kind.removesuffix("-exact")
    always = reading.applied == 1
    reading.settled = size if always and isinstance(size, tuple) else None
    return _note(reading, step, "Resize", size=size, interpolation=kind) + note


def make_resize_reader(**options: Any) -> StepReader:
    """Returns the reader of a resize of albumentations."""

    def read(reading: TransformReading, step: Any) -> str:
        size = read_sides(step)
        reading.settled = None if isinstance(size, int) else size
        kind = {} if step.interpolation == "bilinear" else {"interpolation": step.interpolation}
        made = _note(reading, step, "Resize", size=size, antialias=False, **options, **kind)
        return f"{made}, as OpenCV resizes"

    return read


def read_pad(reading: TransformReading, step: Any) -> str:
    options = {"padding": read_padding(step), "padding_mode": str(step.padding_mode)}
    if step.padding_mode == "constant":
        options["fill"] = read_fill(step)
    return _note_padding(reading, step, options)


def read_pad_if_needed(reading: TransformReading, step: Any) -> str:
    """Reads albumentations' PadIfNeeded."""
    # flips keep the longest side
    resizes = [each for each in reading.before if each["name"] not in _FLIPS]
    last = resizes[-1] if resizes else {}
    options = {"min_size": step.size, "missing": "halved", "padding_mode": step.padding_mode}
    if step.padding_mode == "constant" and any(step.fill):
        options["fill"] = step.fill

    text = _note_padding(reading, step, options)
    # what is not larger becomes as large
    if last.get("side") == "longer" and last["size"] <= min(step.size):
        reading.settled = step.size
    return text


def _note_padding(reading: TransformReading, step: Any, options: dict[str, Any]) -> str:
    settled = reading.settled if reading.applied == 1 else None
    if isinstance(settled, tuple):
        height, width = WholePad(**options).smallest(np.array([settled]))[0].tolist()
        settled = height, width
    reading.settled = settled
    return _note(reading, step, "Pad", **options)


def read_rotation(reading: TransformReading, step: Any) -> str:
    grows: dict[str, Any] = {}
    if step.expand:
        grows, reading.settled = {"expand": True}, None
    return _note_warp(reading, step, degrees=_floats(step.degrees), **grows)


def read_affine(reading: TransformReading, step: Any) -> str:
    options = {
        name: _floats(value)
        for name in ("translate", "scale", "shear")
        if (value := getattr(step, name)) is not None
    }
    return _note_warp(reading, step, degrees=_floats(step.degrees), **options)


def read_perspective(reading: TransformReading, step: Any) -> str:
    scale = float(step.distortion_scale)
    return _note_warp(reading, step, distortion_scale=scale, p=float(step.p))


def read_flip(reading: TransformReading, step: Any) -> str:
    name = step.name if isinstance(step, Alike) else type(step).__name__
    return _note(reading, step, name, p=float(step.p))


def _note_warp(reading: TransformReading, step: Any, **options: Any) -> str:
    """Reads what rotations, affine and perspective steps have in common."""
    mode = str(getattr(step.interpolation, "value", step.interpolation))
    refuse_unless(mode in _MODES, step, f"interpolation={mode}", f"use {', '.join(_MODES)}")
    if any(fill := read_fill(step)):
        options["fill"] = fill
    if (center := getattr(step, "center", None)) is not None:
        options["center"] = _floats(center)

    # torchvision moves tensors by another function, which blends edges with what is around them
    edges = "and at the edges " if mode != "nearest" else ""
    note = f"; of PIL images, which differs {edges}in a few pixels from that of tensors"
    made = _note(reading, step, type(step).__name__, **options, interpolation=mode)
    return made + note * reading.tensor


def _note(reading: TransformReading, step: Any, name: str, **options: Any) -> str:
    """Notes a step of `before` with its options."""
    wrong = reading.floats or reading.augment or reading.erased or reading.crop
    refuse_after(wrong, step, "ToTensor, augmentation or a crop")
    p = reading.applied * options.pop("p", 1.0)
    options |= {"p": p} if p < 1 or name in _OF_CHANCE else {}
    reading.before.append({"name": name, **options})
    return f"before: {name}({describe_options(options)}) on the whole image"


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))


# Attributes of steps


def check_size(step: Any) -> None:
    instead = "add a crop and leave max_size out"
    refuse_unless(step.max_size is None, step, "max_size leaves images of many sizes", instead)
    refuse_unless(step.size is not None, step, "it has no size", "give it one")


def read_sides(step: Any) -> Size:
    """The size of a Resize: the length of the shorter side, or height and width."""
    sides = [step.size] if isinstance(step.size, int) else [int(each) for each in step.size]
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def read_interpolation(reading: TransformReading, step: Any) -> tuple[str, str]:
    """Returns the interpolation of a resize, and how a plan's differs from it for tensors."""
    kind = str(getattr(step.interpolation, "value", step.interpolation))
    # Pillow, which resizes PIL images, takes the pixel at the centre; torchvision calls that
    # nearest-exact
    if kind == "nearest" and not reading.tensor:
        kind = "nearest-exact"
    known = kind in ("bilinear", "bicubic", "nearest-exact")
    refuse_unless(known, step, f"interpolation={kind}", "choose bilinear, bicubic or nearest-exact")
    if not reading.tensor:
        return kind, ""

    # PIL images are always antialiased; for tensors it is an option of the step
    smooth = kind == "nearest-exact" or getattr(step, "antialias", True) is True
    problem = "antialias=False aliases, and this plan's resize does not"
    refuse_unless(smooth, step, problem, "set antialias=True")
    where = "half-way between two pixels" if kind == "nearest-exact" else "in the last bits"
    return kind, f"; of PIL images, which differs from that of tensors {where}"


def read_fill(step: Any) -> tuple[int, int, int]:
    """The color of what comes from outside the image."""
    fill = getattr(step, "fill", None) or 0
    # torchvision may have one number for each channel
    numbers = list(fill) if isinstance(fill, (list, tuple)) else [fill]
    numbers = numbers * 3 if len(numbers) == 1 else numbers
    is_color = len(numbers) == 3 and all(each in range(256) for each in numbers)
    instead = "use one color for all images, of whole numbers from 0 to 255"
    refuse_unless(is_color, step, f"fill={fill}", instead)
    red, green, blue = map(int, numbers)
    return red, green, blue


def is_black(step: Any) -> bool:
    """Whether a RandomCrop pads with black."""
    return step.padding_mode == "constant" and not any(read_fill(step))


def read_padding(step: Any) -> Any:
    """The pixels that Pad or RandomCrop adds, as our option `padding`."""
    padding = step.padding or 0
    sides = tuple(padding) if isinstance(padding, Sequence) else (padding,)
    known = all(isinstance(each, int) and each >= 0 for each in sides)
    refuse_unless(known, step, f"padding={padding}", "use whole numbers from 0 on")
    # v2's RandomCrop keeps left, right, top, bottom (v2/_geometry.py); all others left, top, right,
    # bottom
    if len(sides) == 4 and is_of(step, "torchvision.transforms.v2", "RandomCrop"):
        sides = sides[0], sides[2], sides[1], sides[3]
    return sides[0] if len(set(sides)) == 1 else sides
