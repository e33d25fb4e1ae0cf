"""Resizes without antialiasing, as OpenCV's INTER_LINEAR and INTER_CUBIC make them of 8-bit images.

PyTorch's own differs by one step in a fifth of the values, since it rounds weights in another way.
This arithmetic is that of OpenCV (modules/imgproc/src/resize.cpp, `HResizeLinear` and
`VResizeLinear`): weights of 11 bits, and sums that are cut to 16 bits between the two passes. In
photographs about one value in ten thousand differs, by one step; of the cubic one, one in 25, since
OpenCV adds up in float32 where a processor does that faster.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dali_pipes.plan.geometry import Pair

_ONE = 2048  # the sum of two weights
Places = NDArray[np.int64]
Weights = NDArray[np.int32]


def resize_plain(image: NDArray[np.uint8], shape: Pair, cubic: bool = False) -> NDArray[np.uint8]:
    """(*shape, C) of an image, (H, W, C)."""
    if image.shape[:2] == shape:
        return image
    if cubic:
        return _resize_cubic(image, shape)

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
    """The two places in `size` that each of `out` places is made of, and their weights."""
    centre = ((np.arange(out) + 0.5) * (size / out) - 0.5).astype(np.float32)
    first = np.floor(centre)
    share = centre - first

    # beyond the outermost centres there is only one neighbour
    share[(first < 0) | (first >= size - 1)] = 0
    places = first.astype(np.int64).clip(0, size - 1)
    weights = [np.rint(each * _ONE).astype(np.int32) for each in (1 - share, share)]
    return places, np.minimum(places + 1, size - 1), weights[0], weights[1]


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


def _resize_cubic(image: NDArray[np.uint8], shape: Pair) -> NDArray[np.uint8]:
    """As `HResizeCubic` and `VResizeCubic`: weights of 11 bits, and one rounding at the end."""
    total = np.zeros((len(image), shape[1], image.shape[2]), np.int64)
    for places, weights in _four_neighbours(image.shape[1], shape[1]):
        total += image.take(places, 1) * weights[:, None]
    values = np.zeros((*shape, image.shape[2]), np.int64)
    for places, weights in _four_neighbours(image.shape[0], shape[0]):
        values += total.take(places, 0) * weights[:, None, None]
    return ((values + _ONE**2 // 2) // _ONE**2).clip(0, 255).astype(np.uint8)


def _four_neighbours(size: int, out: int) -> list[tuple[Places, NDArray[np.int64]]]:
    """Four times a place in `size` for each of `out` places, and its weight; places outside are the
    outermost ones.
    """
    centre = ((np.arange(out) + 0.5) * (size / out) - 0.5).astype(np.float32)
    first = np.floor(centre)
    x = centre - first
    # `interpolateCubic`: Keys' kernel with the parameter -0.75, as float32
    a = np.float32(-0.75)
    far = ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    next_one = ((a + 2) * (1 - x) - (a + 3)) * (1 - x) * (1 - x) + 1
    shares = far, near, next_one, 1 - far - near - next_one
    return [
        (
            (first.astype(np.int64) + offset).clip(0, size - 1),
            np.rint(share * np.float32(_ONE)).astype(np.int64),
        )
        for offset, share in zip((-1, 0, 1, 2), shares, strict=True)
    ]
