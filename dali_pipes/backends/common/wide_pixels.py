"""Makes views of wide images, of 16 bits a channel, on the CPU: in float32, as the plan says.

They are the same with every backend that takes such images. Nothing is rounded to whole numbers:
cropped, resized by Pillow in float32, cut to the range of the file where a bicubic filter goes
beyond it, and flipped.
"""

from collections.abc import Iterable, Iterator
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from dali_pipes.backends.common.gray import WEIGHTS
from dali_pipes.backends.common.pillow import View, check_size
from dali_pipes.backends.common.pixels import crop_and_flip
from dali_pipes.backends.common.target_pixels import resize_values
from dali_pipes.data.image_files.wide import decode_wide
from dali_pipes.plan.coordinates import turn_mask

_WHITE = 65535
_STEP = 257  # 65535 / 255: what is one step of 8 bits in 16
Values = NDArray[np.float32]


def read(
    encoded: NDArray[np.uint8], name: str, views: Iterable[View], orientation: int = 1
) -> Iterator[Values]:
    """(height, width, channels) float32 from 0 to 255 for each view of a wide image.

    The arguments are those of `read` of `pillow.py`.

    Raises:
        ValueError: it is another image than when it was scanned.
    """
    stored = turn_mask(decode_wide(BytesIO(encoded.data)), orientation)
    values: Values | None = None
    for view in views:
        check_size(name, view.source, *stored.shape[:2])
        # the same for all views, since these have one number of channels
        values = _in_channels(stored, view.transform.channels) if values is None else values
        made = _resize_region(values, view)
        if made.shape[2] < view.transform.channels:
            made = made.repeat(view.transform.channels, 2)
        yield crop_and_flip(made, view.geometry, view.shape)


def _in_channels(stored: NDArray[np.uint16], channels: int) -> Values:
    """The values as they are, or the luma of colors: gray stays in one channel until it is
    resized.
    """
    if stored.shape[2] == 1 or channels == 3:
        return stored.astype(np.float32)
    # the weights of gray.py, whose sum is 65536, without its rounding
    luma = stored @ (np.array(WEIGHTS) / 65536)
    return luma.astype(np.float32)[..., None]


def _resize_region(values: Values, view: View) -> Values:
    top, left, height, width = map(int, view.geometry.region)
    region = values[top : top + height, left : left + width]
    to = int(view.geometry.resize[0]), int(view.geometry.resize[1])
    # Pillow's NEAREST is what PyTorch calls "nearest-exact"
    interpolation = view.interpolation.removesuffix("-exact")
    resized = resize_values(region, to, interpolation, not view.transform.is_plain)
    return np.asarray(resized.clip(0, _WHITE) / np.float32(_STEP), np.float32)
