"""Makes views of wide images, of 16 bits a channel, on the CPU: in float32, as the plan says.

Nothing is rounded to whole numbers:
cropped, resized by Pillow in float32, cut to the range of the file where a bicubic filter goes
beyond it, and flipped.
"""

from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.backends.common.gray import WEIGHTS
from dali_pipes.backends.common.pillow import View, check_size
from dali_pipes.backends.common.pixels import crop_and_flip
from dali_pipes.backends.common.second_pixels import resize_values
from dali_pipes.backends.common.whole_image import WARPS
from dali_pipes.data.image_files.stored import open_stored
from dali_pipes.data.image_files.wide import decode_wide
from dali_pipes.data.upright import upright_size
from dali_pipes.plan.coordinates import turn_mask
from dali_pipes.plan.whole.base import DrawnStep

_WHITE = 65535
_STEP = 257  # 65535 / 255: what is one step of 8 bits in 16
Values = NDArray[np.float32]


def read(
    encoded: NDArray[np.uint8], name: str, views: Sequence[View], orientation: int = 1
) -> Iterator[Values]:
    """(height, width, channels) float32 from 0 to 255 for each view of a wide image.

    The arguments are those of `read` of `pillow.py`.

    Raises:
        ValueError: it is another image than when it was scanned.
    """
    # before decoding, since a file that was replaced may be larger than any scan allows
    with open_stored(BytesIO(encoded.data)) as image:
        check_size(name, views[0].source, *upright_size(image.height, image.width, orientation))

    stored = turn_mask(decode_wide(BytesIO(encoded.data)), orientation)
    # of all views, which have one number of channels
    channels = views[0].transform.channels
    values = _in_channels(stored, channels)
    for view in views:
        made = _resize_region(_change(values, view.before, channels), view)
        if made.shape[2] < channels:
            made = made.repeat(channels, 2)
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


def _change(values: Values, drawn: Sequence[DrawnStep], channels: int) -> Values:
    """The values after the steps on the whole image, as whole_image.py makes them of bytes."""
    # what comes from outside the image may have a color
    if drawn and values.shape[2] < channels:
        values = values.repeat(channels, 2)
    for step in drawn:
        if step.happens:
            values = _change_once(values, step).clip(0, _WHITE)
    return values


def _change_once(values: Values, drawn: DrawnStep) -> Values:
    height, width = drawn.size.tolist()
    if drawn.kind in ("resize", "plain_resize"):
        is_smooth = drawn.kind == "resize"
        return resize_values(values, (height, width), drawn.interpolation, is_smooth)

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
    planes = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(values[..., at])).transform(
                *warp, resample, fillcolor=fill[at]
            )
        )
        for at in range(values.shape[2])
    ]
    return np.stack(planes, 2)


def _resize_region(values: Values, view: View) -> Values:
    top, left, height, width = map(int, view.geometry.region)
    region = values[top : top + height, left : left + width]
    to = int(view.geometry.resize[0]), int(view.geometry.resize[1])
    # Pillow's NEAREST is what PyTorch calls "nearest-exact"
    interpolation = view.interpolation.removesuffix("-exact")
    resized = resize_values(region, to, interpolation, not view.transform.is_plain)
    return np.asarray(resized.clip(0, _WHITE) / np.float32(_STEP), np.float32)
