"""Resizes without antialiasing, as OpenCV's INTER_LINEAR and INTER_CUBIC make them of 8-bit images.

Linear: PyTorch's own differs by one step in an eighth of the values, since it rounds weights in
another way. This arithmetic is that of OpenCV (modules/imgproc/src/resize.cpp, `HResizeLinear` and
`VResizeLinear`): weights of 11 bits, and sums that are cut to 16 bits between the two passes.

Where OpenCV is installed it makes the linear ones itself: 0.1 CPU-ms for 224 × 224 pixels, of which
NumPy takes 1.1.

Cubic, and all that is float32 already: OpenCV's processor-specific code adds up in float32, as
PyTorch does with the same kernel. About one value of 8 bits in five thousand differs, by one step.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate

from dali_pipes.plan.geometry import Pair

_ONE = 2048  # the sum of two weights
Places = NDArray[np.int64]
Weights = NDArray[np.int32]


def resize_plain(image: NDArray[np.uint8], shape: Pair, cubic: bool = False) -> NDArray[np.uint8]:
    """(*shape, C) of an image, (H, W, C)."""
    if image.shape[:2] == shape:
        return image
    if cubic:
        resized = resize_plain_values(image.astype(np.float32), shape, "bicubic")
        return np.rint(resized).clip(0, 255).astype(np.uint8, order="C")
    if opencv := _find_opencv():
        return opencv(image, shape[::-1]).reshape(*shape, image.shape[2])
    return _resize_linear(image, shape)


@cache
def _find_opencv() -> Callable[..., Any] | None:
    """`cv2.resize`, if there is one that computes as this page does: builds differ in what they use
    of a processor.
    """
    try:
        import cv2
    except Exception:  # an installation may be broken in any way
        return None
    image = np.random.default_rng(0).integers(0, 256, (61, 83, 3), np.uint8)
    for shape in ((40, 40), (97, 150)):
        if (cv2.resize(image, shape[::-1]) != _resize_linear(image, shape)).any():
            return None
    return cv2.resize


def _resize_linear(image: NDArray[np.uint8], shape: Pair) -> NDArray[np.uint8]:
    above, below, over, under = _neighbours(image.shape[0], shape[0])
    channels = image.shape[2]
    left, right, before, after = _neighbours_of_values(image.shape[1], shape[1], channels)
    # rows of all channels: NumPy takes single values faster than pixels of three
    rows = np.ascontiguousarray(image).reshape(len(image), -1)

    def blend_columns(places: Places) -> Weights:
        chosen = rows.take(places, 0)
        mixed = chosen.take(left, 1) * before
        mixed += chosen.take(right, 1) * after
        mixed >>= 4
        return mixed

    # each product is cut before the sum, as in OpenCV
    total = blend_columns(above)
    total *= over[:, None]
    total >>= 16
    other = blend_columns(below)
    other *= under[:, None]
    other >>= 16
    total += other
    total += 2
    total >>= 2
    # it cannot leave 0 to 255, since the weights add up to `_ONE`
    return total.astype(np.uint8).reshape(*shape, channels)


def _neighbours(size: int, out: int) -> tuple[Places, Places, Weights, Weights]:
    """The two places in `size` that each of `out` places is made of, and their weights.

    Places outside are the outermost ones: blended with itself, a row may lose a step where each
    product is cut.
    """
    centre = ((np.arange(out) + 0.5) * (size / out) - 0.5).astype(np.float32)
    first = np.floor(centre)
    share = centre - first

    places = [(first.astype(np.int64) + offset).clip(0, size - 1) for offset in (0, 1)]
    weights = [np.rint(each * _ONE).astype(np.int32) for each in (1 - share, share)]
    return places[0], places[1], weights[0], weights[1]


@lru_cache(maxsize=64)
def _neighbours_of_values(
    size: int, out: int, channels: int
) -> tuple[Places, Places, Weights, Weights]:
    """As `_neighbours`, for rows in which each pixel has this many values."""
    values = np.arange(channels)
    first, second, *weights = _neighbours(size, out)
    places = [(each[:, None] * channels + values).ravel() for each in (first, second)]
    over, under = (each.repeat(channels) for each in weights)
    return places[0], places[1], over, under


def resize_plain_values(
    values: NDArray[np.float32], shape: Pair, interpolation: str
) -> NDArray[np.float32]:
    """(*shape, C) of values, (H, W, C)."""
    planes = torch.from_numpy(np.ascontiguousarray(values)).permute(2, 0, 1)[None]
    resized = interpolate(planes, shape, mode=interpolation, align_corners=False)
    return resized[0].permute(1, 2, 0).numpy()
