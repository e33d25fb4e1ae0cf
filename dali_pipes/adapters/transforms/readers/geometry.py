"""Reads the geometry that a plan has itself: one resize, one crop, flips."""

from typing import Any

from dali_pipes.adapters.transforms.readers.whole import (
    check_size,
    is_black,
    read_interpolation,
    read_padding,
    read_sides,
)
from dali_pipes.adapters.transforms.reading import (
    Alike,
    Size,
    StepReader,
    TransformReading,
    describe_options,
    refuse_after,
    refuse_unless,
)
from dali_pipes.plan.transforms.base import RANDOM


def read_resize(reading: TransformReading, step: Any) -> str:
    _check_place(reading, step)
    refuse_after(reading.crop or reading.resize is not None, step, "a resize or a crop")
    check_size(step)
    note = _note_interpolation(reading, step)
    reading.resize = read_sides(step)
    return f"resize={reading.resize}, {reading.interpolation}{note}"


def read_center_crop(reading: TransformReading, step: Any) -> str:
    if isinstance(step, Alike):
        _check_room(reading, step)
    # before a random crop it makes no difference
    flipped = {"flip_before_crop": True} if reading.flips else {}
    return f"central crop, {_note_crop(reading, step, 'center', **flipped)}"


def _check_room(reading: TransformReading, step: Any) -> None:
    """Checks that albumentations' CenterCrop is torchvision's, which rounds halves to even."""
    whole = reading.resize or reading.settled
    sides = whole if isinstance(whole, tuple) else (0, 0)
    refuse_unless(any(sides), step, "no Resize is before it", "resize to (height, width)")
    room = [before - after for before, after in zip(sides, vars(step)["size"], strict=True)]
    problem = f"it cuts {room} pixels off, of which it leaves the odd one at the end"
    even = all(each >= 0 and each % 4 != 3 for each in room)
    refuse_unless(even, step, problem, "cut an even number of pixels off")


def read_resized_crop(reading: TransformReading, step: Any) -> str:
    refuse_after(reading.resize is not None, step, "a resize")
    note = _note_interpolation(reading, step)
    made = _note_crop(reading, step, "resized", scale=tuple(step.scale), ratio=tuple(step.ratio))
    return f"TrainTransform: {made}, {reading.interpolation}{note}"


def read_random_crop(reading: TransformReading, step: Any) -> str:
    padding, if_needed = read_padding(step), bool(step.pad_if_needed)
    # with other padding than black it comes in two parts (steps.py), but for what is missing
    plain = not (padding or if_needed) or is_black(step)
    problem = f"padding_mode={step.padding_mode}, fill={step.fill}"
    refuse_unless(plain, step, problem, "pad with black if it is needed")

    # flipped first, the wider margin would be on the other side
    lopsided = isinstance(padding, tuple) and len(padding) == 4 and padding[:2] != padding[2:]
    problem = "its padding is lopsided, and a flip comes before it"
    refuse_unless(not (reading.flips and lopsided), step, problem, "flip after the crop")
    made = _note_crop(reading, step, "random", padding=padding, pad_if_needed=if_needed)
    return f"RandomCropTransform: {made}"


def _note_crop(reading: TransformReading, step: Any, kind: str, **options: Any) -> str:
    """Reads what all crops have in common.

    Args:
        kind: "center", "resized" or "random", as `TransformReading.built` knows it.
        options: our transform's options for this kind, without the size.
    """
    _check_place(reading, step)
    refuse_unless(not reading.crop, step, "it is the second crop, and a plan has one")
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
        refuse_unless(option not in reading.flips, step, "it is there twice")
        problem = "it comes after CenterCrop, and the other flip before it"
        one_side = not reading.options.get("flip_before_crop")
        refuse_unless(one_side, step, problem, "put both on one side")

        # after colours and blur it makes no difference, so these may come before it
        refuse_after(reading.affine or reading.erased, step, "an operation that moves pixels")
        reading.flips[option] = float(step.p)
        return f"{option}={step.p}"

    return read


def _check_place(reading: TransformReading, step: Any) -> None:
    """Checks the place of a step that moves pixels."""
    wrong = reading.floats or reading.augment or reading.erased
    refuse_after(wrong, step, "ToTensor or augmentation")


def _note_interpolation(reading: TransformReading, step: Any) -> str:
    """Reads the interpolation of the plan's resize, and returns how it differs for tensors."""
    choices = step.interpolation
    if isinstance(step, Alike):
        instead = "use cv2.INTER_LINEAR, albumentations' default"
        refuse_unless(choices == "bilinear", step, f"interpolation={choices}", instead)
        reading.interpolation, reading.antialias = "bilinear", False
        return ", antialias=False as OpenCV resizes"

    # timm's "random", one of the two with equal chances
    if isinstance(choices, (tuple, list)) and not reading.tensor:
        kinds = sorted(str(getattr(mode, "value", mode)) for mode in choices)
        if kinds == ["bicubic", "bilinear"]:
            reading.interpolation = RANDOM
            return ""
    reading.interpolation, note = read_interpolation(reading, step)
    return note
