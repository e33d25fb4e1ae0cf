"""Decodes wide images, of 16 bits a channel, and resizes them in float32.

Nothing is rounded to whole numbers: they are resized by Pillow in float32, and cut to the range of
the file where a bicubic filter goes beyond it.
"""

from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.backends.pixels.decode import check_size
from dali_pipes.backends.pixels.finish import Pixels, as_one
from dali_pipes.backends.pixels.gray import WEIGHTS
from dali_pipes.backends.pixels.plain_resize import resize_plain_values
from dali_pipes.backends.pixels.whole import WARPS
from dali_pipes.data.image_files.stored import open_stored
from dali_pipes.data.image_files.wide import decode_wide
from dali_pipes.data.turns import turn_array, turn_size
from dali_pipes.plan.geometry import Pair
from dali_pipes.plan.steps.lists import WholeSteps
from dali_pipes.plan.steps.whole import DrawnStep

_WHITE = 65535
_STEP = 257  # 65535 / 255: what is one step of 8 bits in 16
Values = NDArray[np.float32]


def decode_wide_pixels(
    encoded: NDArray[np.uint8],
    name: str,
    size: NDArray[np.int64],
    orientation: int = 1,
    channels: int = 3,
) -> Pixels:
    """The pixels of a wide image; arguments and errors as of `decode`."""
    # before decoding, since a file that was replaced may be larger than any scan allows
    with open_stored(BytesIO(encoded.data)) as image:
        check_size(name, size, *turn_size(image.height, image.width, orientation))

    stored = turn_array(decode_wide(BytesIO(encoded.data)), orientation)
    return _WidePixels(_in_channels(stored, channels), channels)


class _WidePixels:
    """(H, W, C) float32 from 0 to 65535; C may be 1, of gray that becomes three channels."""

    def __init__(self, values: Values, channels: int):
        self._values, self._channels = values, channels

    def change(self, drawn: Sequence[DrawnStep], steps: WholeSteps) -> "_WidePixels":
        """As whole.py changes bytes."""
        # what comes from outside the image may have a color
        values = self._in_all_channels(self._values)
        for step in drawn:
            if step.happens:
                values = _change_once(values, step).clip(0, _WHITE)
        return _WidePixels(values, self._channels)

    def resize(
        self, part: list[int], size: Pair, interpolation: str, antialias: bool
    ) -> torch.Tensor:
        """(1, C, *size) float32 from 0 to 255."""
        top, left, height, width = part
        region = self._values[top : top + height, left : left + width]
        # Pillow's NEAREST is what PyTorch calls "nearest-exact"
        method = interpolation.removesuffix("-exact")
        resized = _resize(region, size, method, antialias)
        values = np.asarray(resized.clip(0, _WHITE) / np.float32(_STEP), np.float32)
        return as_one(torch.from_numpy(self._in_all_channels(values)))

    def _in_all_channels(self, values: Values) -> Values:
        return values.repeat(self._channels, 2) if values.shape[2] < self._channels else values


def _in_channels(stored: NDArray[np.uint16], channels: int) -> Values:
    """The values as they are, or the luma of colors: gray stays in one channel until it is
    resized.
    """
    if stored.shape[2] == 1 or channels == 3:
        return stored.astype(np.float32)
    # the weights of gray.py, whose sum is 65536, without its rounding
    luma = stored @ (np.array(WEIGHTS) / 65536)
    return luma.astype(np.float32)[..., None]


def _change_once(values: Values, drawn: DrawnStep) -> Values:
    height, width = drawn.size.tolist()
    if drawn.kind in ("resize", "plain_resize"):
        is_smooth = drawn.kind == "resize"
        return _resize(values, (height, width), drawn.interpolation, is_smooth)

    # three equal numbers for one channel
    fill = [_STEP * each for each in drawn.fill]
    if drawn.kind == "pad":
        left, top, right, bottom = drawn.numbers[:4].astype(int).tolist()
        mode: Any = drawn.padding_mode
        planes = []
        for at, value in zip(range(values.shape[2]), fill, strict=False):
            options = {"constant_values": value} if mode == "constant" else {}
            plane = np.pad(values[..., at], ((top, bottom), (left, right)), mode, **options)
            planes.append(plane)
        return np.stack(planes, 2)

    method, count = WARPS[drawn.kind]
    warp = (width, height), method, drawn.numbers[:count].tolist()
    resample = Image.Resampling[drawn.interpolation.upper()]
    moved = [
        np.asarray(plane.transform(*warp, resample, fillcolor=value))
        for plane, value in zip(_planes(values), fill, strict=False)
    ]
    return np.stack(moved, 2)


def _resize(values: Values, shape: Pair, interpolation: str, is_smooth: bool) -> Values:
    if not is_smooth:
        return resize_plain_values(values, shape, interpolation)
    method = Image.Resampling[interpolation.upper()]
    resized = [np.asarray(plane.resize(shape[::-1], method)) for plane in _planes(values)]
    return np.stack(resized, 2)


def _planes(values: Values) -> Iterator[Image.Image]:
    """Each channel: Pillow has no colors in float32."""
    for at in range(values.shape[2]):
        yield Image.fromarray(np.ascontiguousarray(values[..., at]))
