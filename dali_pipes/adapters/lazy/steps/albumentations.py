"""albumentations 2, and albucore below it: what they compute without OpenCV.

The rest of what its transforms do is OpenCV's (opencv.py) and NumPy's (numpy_ops.py). Parameters
are drawn by the transforms, and are arguments of these functions.
"""

from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.lazy import arrays
from dali_pipes.adapters.lazy.arrays import LazyArray
from dali_pipes.adapters.lazy.steps.step import Original, Step, add, replace

_PIXEL = "albumentations.augmentations.pixel.functional"
_DROPOUT = "albumentations.augmentations.dropout.functional"
_BLUR = "albumentations.augmentations.blur.functional"
_CORE = "albucore.functions"


def _row(owner: str, name: str, form: Any, plan: Any = None) -> Step:
    return Step(f"albumentations.{name}", None, form, plan, owner, name, "array")


def form_same(array: LazyArray, *_: Any, **__: Any) -> Any:
    return (array.shape, array.dtype) if array.dtype == np.uint8 else None


def form_color(array: LazyArray, *_: Any, **__: Any) -> Any:
    return form_same(array) if array.ndim == 3 else None


def form_table(array: LazyArray, lut: Any, inplace: bool = True) -> Any:
    return None if inplace or array.dtype != np.uint8 else (array.shape, np.uint8)


def form_multiply_add(array: LazyArray, factor: Any, value: Any, inplace: bool = False) -> Any:
    return None if inplace or array.dtype != np.uint8 else (array.shape, array.dtype)


def form_normalize(array: LazyArray, mean: Any, denominator: Any) -> Any:
    return array.shape, np.float32


def plan_normalize(row: Any, mean: Any, denominator: Any) -> None:
    row.cast(torch.float32)
    by = np.asarray(denominator, np.float64).ravel()
    row.scale_by(by.tolist(), (-np.asarray(mean, np.float64).ravel() * by).tolist())


def _cutout(original: Any, img: Any, holes: Any, fill: Any, random_generator: Any) -> Any:
    """With numbers it draws nothing, and a recipe need not have the generator."""
    if type(img) is LazyArray and img.waits and isinstance(fill, (int, float)):
        holes = np.asarray(holes)
        return img.then(np.empty(img.shape, img.dtype), "albumentations.cutout", holes, fill)
    return original(*arrays.true_args((img, holes, fill)), random_generator)


_CUTOUT = Original(_DROPOUT, "cutout")


def plan_cutout(row: Any, holes: Any, fill: Any) -> None:
    for left, top, right, bottom in holes.tolist():
        row.erase(top, left, bottom - top, right - left, float(fill))


def _contiguous_output(original: Any, value: Any) -> Any:
    if type(value) is LazyArray:
        return arrays.contiguous(np.ascontiguousarray, value)
    return original(value)


replace("albumentations.core.utils", "ensure_contiguous_output", _contiguous_output)
replace(_DROPOUT, "cutout", _cutout)
add(
    Step(
        "albumentations.cutout",
        lambda array, holes, fill: _CUTOUT(array, holes, fill, None),
        plan=plan_cutout,
    ),
    _row(_PIXEL, "shift_hsv", form_color),
    _row(_PIXEL, "gamma_transform", form_same),
    _row(_CORE, "multiply_add", form_multiply_add),
    _row(_CORE, "normalize", form_normalize, plan_normalize),
)
