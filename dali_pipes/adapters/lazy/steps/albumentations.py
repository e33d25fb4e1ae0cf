"""albumentations 2, and albucore below it: what they compute without OpenCV.

The rest of what its transforms do is OpenCV's (opencv.py) and NumPy's (numpy_ops.py). The
transforms draw, and what they have drawn are arguments of these functions; those that draw
themselves are no rows. What changes each value by itself becomes a table, which is made by the
function itself.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.lazy import arrays
from dali_pipes.adapters.lazy.arrays import LazyArray
from dali_pipes.adapters.lazy.steps.step import NoPlace, Original, Step, add, original, replace

_PIXEL = "albumentations.augmentations.pixel.functional"
_DROPOUT = "albumentations.augmentations.dropout.functional"
_CORE = "albucore.functions"


def _row(owner: str, name: str, form: Any, plan: Any) -> Step:
    """A row of the function inside of albumentations' decorators, which see what waits: none of
    these functions leaves them anything to do with bytes.
    """
    return Step(f"albumentations.{name}", None, form, plan, owner, name, "array")


# Forms: bytes stay bytes


def form_same(array: LazyArray, *_: Any, **__: Any) -> Any:
    return (array.shape, array.dtype) if array.dtype == np.uint8 else None


def form_colors(array: LazyArray, *_: Any, **__: Any) -> Any:
    return form_same(array) if array.ndim == 3 else None


def _form_unless_same(form: Callable[..., Any], *same: float) -> Callable[..., Any]:
    """With these numbers in front the array itself comes back."""

    def unless(array: LazyArray, *args: Any, **options: Any) -> Any:
        first = (*args, *options.values())[: len(same)]
        if all(type(each) in (int, float, np.float64, np.float32) for each in first):
            return None if first == same else form(array, *args, **options)
        return None

    return unless


def form_not_in_place(array: LazyArray, *args: Any, inplace: bool = False) -> Any:
    last = args[-1] if args and isinstance(args[-1], bool) else inplace
    return None if last else form_same(array)


def form_floats(array: LazyArray, *_: Any, **__: Any) -> Any:
    return (array.shape, np.float32) if array.dtype == np.uint8 else None


def form_normalized(array: LazyArray, mean: Any, denominator: Any) -> Any:
    """Arrays of float64 would give float64."""
    each = [np.asarray(value) for value in (mean, denominator) if not isinstance(value, float)]
    return (array.shape, np.float32) if all(e.dtype == np.float32 for e in each) else None


def form_gray(array: LazyArray, num_output_channels: int, method: str) -> Any:
    if array.dtype != np.uint8 or array.ndim != 3 or num_output_channels != 3:
        return None
    return array.shape, array.dtype


# Plans


def _plan_table(owner: str, name: str) -> Callable[..., None]:
    """What becomes of all values is what the function makes of an image that has them."""

    def plan(row: Any, *args: Any, **options: Any) -> None:
        image = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
        made = original(owner, name)(image, *args, **options)
        row.look_up(made[0].T)

    return plan


_ADD = Original(_CORE, "add_constant")


def plan_shift_hsv(row: Any, hue_shift: float, sat_shift: float, val_shift: float) -> None:
    values = np.arange(256, dtype=np.uint8)
    if row.channels == 1:
        raise NoPlace("the hue of a gray picture")
    tables = np.stack([values] * 3)
    if hue_shift:
        tables[0] = np.mod(values.astype(np.int16) + hue_shift, 180).astype(np.uint8)
    for at, shift in ((1, sat_shift), (2, val_shift)):
        if shift:
            tables[at] = np.clip(_ADD(values[None], shift)[0], 0, 255)
    tables[1, 0] = 0  # what is gray stays gray
    row.look_up(tables, hsv=True)


def plan_hue(row: Any, factor: float) -> None:
    values = np.arange(256, dtype=np.int16)
    hue = np.mod(values + 180 * factor, 180).astype(np.uint8)
    row.look_up(np.stack([hue, values.astype(np.uint8), values.astype(np.uint8)]), hsv=True)


def plan_saturation(row: Any, factor: float, gamma: float = 0) -> None:
    if gamma:
        raise NoPlace("a saturation with a sum")
    row.operate("Color", factor - 1)


def plan_gray(row: Any, num_output_channels: int, method: str) -> None:
    if method != "weighted_average":
        raise NoPlace(f"gray by {method}")
    row.convert("L")
    row.convert("RGB")


def plan_normalize(row: Any, mean: Any, denominator: Any) -> None:
    row.cast(torch.float32)
    by = np.asarray(denominator, np.float64).ravel()
    row.scale_by(by.tolist(), (-np.asarray(mean, np.float64).ravel() * by).tolist())


def plan_to_float(row: Any, max_value: float | None = None) -> None:
    row.cast(torch.float32)
    row.scale_by(1 / (max_value or 255))


# Rectangles


def _cutout(function: Any, img: Any, holes: Any, fill: Any, random_generator: Any) -> Any:
    """With numbers it draws nothing, and a recipe need not have the generator."""
    numbers = isinstance(fill, (int, float)) or np.shape(fill) == (3,)
    if type(img) is LazyArray and img.may_be_noted and numbers and not isinstance(fill, str):
        holes, like = np.asarray(holes), np.empty(img.shape, img.dtype)
        return img.then(like, "albumentations.cutout", holes, fill)
    return function(*arrays.true_args((img, holes, fill)), random_generator)


_CUTOUT = Original(_DROPOUT, "cutout")


def make_cutout(array: Any, holes: Any, fill: Any) -> Any:
    return _CUTOUT(array, holes, fill, None)


def plan_cutout(row: Any, holes: Any, fill: Any) -> None:
    one = isinstance(fill, (int, float))
    value = float(fill) if one else tuple(float(each) for each in fill)
    for left, top, right, bottom in holes.tolist():
        row.erase(top, left, bottom - top, right - left, value)


def _contiguous_output(function: Any, value: Any) -> Any:
    if type(value) is LazyArray:
        return arrays.contiguous(np.ascontiguousarray, value)
    return function(value)


replace("albumentations.core.utils", "ensure_contiguous_output", _contiguous_output)
replace(_DROPOUT, "cutout", _cutout)
add(
    Step("albumentations.cutout", make_cutout, plan=plan_cutout),
    _row(_PIXEL, "shift_hsv", _form_unless_same(form_colors, 0, 0, 0), plan_shift_hsv),
    _row(_PIXEL, "adjust_hue_torchvision", _form_unless_same(form_colors, 0), plan_hue),
    _row(
        _PIXEL, "adjust_saturation_torchvision", _form_unless_same(form_colors, 1), plan_saturation
    ),
    _row(
        _PIXEL,
        "adjust_contrast_torchvision",
        _form_unless_same(form_colors, 1),
        lambda row, factor: row.operate("Contrast", factor - 1),
    ),
    _row(
        _PIXEL,
        "adjust_brightness_torchvision",
        _form_unless_same(form_same, 1),
        _plan_table(_PIXEL, "adjust_brightness_torchvision"),
    ),
    *[
        _row(_PIXEL, name, form_same, _plan_table(_PIXEL, name))
        for name in ("gamma_transform", "posterize", "solarize", "invert")
    ],
    _row(_PIXEL, "to_gray", form_gray, plan_gray),
    _row(_CORE, "multiply_add", form_not_in_place, _plan_table(_CORE, "multiply_add")),
    _row(_CORE, "normalize", form_normalized, plan_normalize),
    _row(_CORE, "to_float", form_floats, plan_to_float),
)
