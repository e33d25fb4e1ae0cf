"""Reads steps that a plan does on the whole image, before it cuts out a region: `before` of a
transform.
"""

from typing import Any

import numpy as np

from dali_pipes.adapters.transforms.readers.albumentations import Alike
from dali_pipes.adapters.transforms.readers.common import (
    describe_options,
    is_black,
    is_v2,
    read_fill,
    read_padding,
    refuse_after,
    refuse_altered,
)
from dali_pipes.adapters.transforms.readers.geometry import (
    check_size,
    read_interpolation,
    read_sides,
)
from dali_pipes.adapters.transforms.reading import (
    NotConvertibleError,
    TransformReading,
    refuse_unless,
)
from dali_pipes.plan.whole.pad import WholePad

_FLIPS = ("RandomHorizontalFlip", "RandomVerticalFlip", "RandomRotate90", "Transpose")
# those of them that have a probability of their own
_OF_CHANCE = ("RandomPerspective", *_FLIPS)


class Padding:
    """What Pad or RandomCrop pads."""

    def __init__(self, step: Any):
        self.step = step

    def __repr__(self) -> str:
        is_crop = type(self.step).__name__ == "RandomCrop"
        return f"the padding of {self.step!r}" if is_crop else repr(self.step)

    @property
    def options(self) -> list[dict[str, Any]]:
        """What is padded, one after the other, as options of our step Pad."""
        step, mode = self.step, str(self.step.padding_mode)
        common: dict[str, Any] = {"padding_mode": mode}
        if mode == "constant":
            common["fill"] = read_fill(step)
        padding = read_padding(step)
        if not getattr(step, "pad_if_needed", False):
            return [{"padding": padding, **common}]

        # v2 pads once, by the sum; v1 first as it is told, then the width, then the height
        height, width = step.size
        if is_v2(step):
            return [{"padding": padding, "min_size": (height, width), **common}]
        missing = [{"min_size": (1, width), **common}, {"min_size": (height, 1), **common}]
        return [{"padding": padding, **common}, *missing] if padding else missing


class PaddingIfNeeded(Padding):
    """What albumentations' PadIfNeeded pads."""

    @property
    def options(self) -> list[dict[str, Any]]:
        step, option = self.step, {"padding_mode": self.step.padding_mode}
        if step.padding_mode == "constant" and any(step.fill):
            option["fill"] = step.fill
        return [{"min_size": step.size, "missing": "halved", **option}]


def split_crop(step: Any) -> list[Any]:
    """A RandomCrop as its padding and its crop, if it pads with anything but black."""
    from torchvision import transforms

    pads = step.padding or step.pad_if_needed
    if not pads or (step.padding_mode == "constant" and is_black(step)):
        return [step]
    try:
        refuse_altered(step)
    except NotConvertibleError:
        # its reader refuses it as well
        return [step]
    return [Padding(step), transforms.RandomCrop(step.size)]


def read_pad(reading: TransformReading, step: Any) -> str:
    return _note_padding(reading, step if isinstance(step, Padding) else Padding(step))


def read_pad_if_needed(reading: TransformReading, step: Any) -> str:
    limit = _longest_side(reading)
    text = _note_padding(reading, PaddingIfNeeded(step))
    # what is not larger becomes as large
    if limit is not None and limit <= min(step.size):
        reading.settled = step.size
    return text


def _longest_side(reading: TransformReading) -> int | None:
    """The longest side of all images by now, if the last step that changed sizes gave it."""
    # functions keep the shape, and flips and right angles keep the longest side
    steps = [each for each in reading.before if isinstance(each, dict)]
    resizes = [each for each in steps if each["name"] not in _FLIPS]
    last = resizes[-1] if resizes else {}
    return last["size"] if last.get("side") == "longer" else None


def _note_padding(reading: TransformReading, padding: Padding) -> str:
    settled = reading.settled if reading.applied == 1 else None
    texts = []
    for option in padding.options:
        texts.append(_note_option(reading, padding.step, "Pad", option))
        if isinstance(settled, tuple):
            height, width = WholePad(**option).smallest(np.array([settled]))[0].tolist()
            settled = height, width
    reading.settled = settled
    return "; ".join(texts)


def read_resize(reading: TransformReading, step: Any) -> str:
    if isinstance(step, Alike):
        return _note_plain_resize(reading, step)

    check_size(step)
    kind, note = read_interpolation(reading, step)
    size, kind = read_sides(step), kind.removesuffix("-exact")
    always = reading.applied == 1
    reading.settled = size if always and isinstance(size, tuple) else None
    return _note_whole(reading, step, size=size, interpolation=kind) + note


def read_smallest(reading: TransformReading, step: Any) -> str:
    return _note_plain_resize(reading, step, rounding="nearest")


def read_longest(reading: TransformReading, step: Any) -> str:
    return _note_plain_resize(reading, step, rounding="nearest", side="longer")


def read_sized_crop(reading: TransformReading, step: Any) -> str:
    """Reads albumentations' RandomSizedCrop, which crops and then resizes."""
    options = {name: getattr(step, name) for name in ("min_max_height", "w2h_ratio")}
    return f"{_note_option(reading, step, 'RandomSizedCrop', options)}; " + _note_plain_resize(
        reading, step
    )


def read_turn(reading: TransformReading, step: Any) -> str:
    """Reads a step that makes rows of columns, of some images or of all."""
    settled = reading.settled
    is_square = isinstance(settled, tuple) and settled[0] == settled[1]
    reading.settled = settled if is_square else None
    return _note_whole(reading, step, p=float(step.p))


def refuse_late(reading: TransformReading, step: Any) -> str:
    """Refuses a step that a plan has only before its own resize and crop."""
    raise NotConvertibleError(
        f"albumentations' {type(step).__name__}",
        "dali_pipes has no such step after a resize or a crop",
        "write the same with steps of torchvision or albumentations that docs/steps.md lists, "
        "or put it before them, if your training may change so (1 line)",
    )


def _note_plain_resize(reading: TransformReading, step: Any, **options: Any) -> str:
    """Notes a resize of albumentations."""
    size = read_sides(step)
    reading.settled = None if isinstance(size, int) else size
    if step.interpolation != "bilinear":
        options["interpolation"] = step.interpolation
    options = {"name": "Resize", "size": size, "antialias": False, **options}
    return f"{_note_whole(reading, step, **options)}, as OpenCV resizes"


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
    return _note_whole(reading, step, p=float(step.p))


def _note_warp(reading: TransformReading, step: Any, **options: Any) -> str:
    """Reads what rotations, affine and perspective steps have in common."""
    name, mode = type(step).__name__, str(getattr(step.interpolation, "value", step.interpolation))
    known = ("nearest", "bilinear", "bicubic")
    refuse_unless(mode in known, name, f"interpolation={mode}", f"use {', '.join(known)}")

    if any(fill := read_fill(step)):
        options["fill"] = fill
    if (center := getattr(step, "center", None)) is not None:
        options["center"] = _floats(center)

    # torchvision moves tensors by another function, which blends edges with what is around them
    edges = "and at the edges " if mode != "nearest" else ""
    note = f"; of PIL images, which differs {edges}in a few pixels from that of tensors"
    return _note_whole(reading, step, **options, interpolation=mode) + note * reading.tensor


def _note_whole(reading: TransformReading, step: Any, **options: Any) -> str:
    return _note_option(reading, step, options.pop("name", type(step).__name__), options)


def _note_option(reading: TransformReading, step: Any, name: str, options: dict[str, Any]) -> str:
    """Notes a step of `before` with its options."""
    wrong = reading.floats or reading.augment or reading.erased
    refuse_after(wrong or reading.crop, step, "ToTensor, augmentation or a crop")
    p = reading.applied * options.pop("p", 1.0)
    options |= {"p": p} if p < 1 or name in _OF_CHANCE else {}
    reading.before.append({"name": name, **options})
    return f"before: {name}({describe_options(options)}) on the whole image"


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(map(float, values))
