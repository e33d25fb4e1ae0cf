"""Operations by a table of what becomes of each value, on the CPU or a GPU.

`look_up_hsv` computes OpenCV's hue, saturation and value of 8 bits as OpenCV does
(modules/imgproc/src/color_hsv.simd.hpp, `RGB2HSV_b` and `HSV2RGB_b` of OpenCV 4): in whole numbers
there, in float32 back, cut to whole numbers. About one value in a hundred differs by one step,
since OpenCV rounds the last ones of a row. Where OpenCV is installed, it makes them on the CPU, in
a tenth of the time.

`turn_hue` turns the hue as torchvision's `adjust_hue` of a PIL image does: by way of Pillow's HSV,
whose hue, saturation and value have 8 bits. The result is equal to torchvision's for every color.
As in Pillow's Convert.c (`rgb2hsv_row`, `hsv2rgb`), what is a `float` there is rounded to float32,
and what is between is float64. All divisions are in tables, which takes less time than Pillow does.
"""

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.transfer import copy_to

Tables = NDArray[np.uint8]  # (N, 3, 256), as of `Augmentation`

_BITS = 12  # of fractions in OpenCV's divisions
# blue, green and red of each sixth of the circle, by the place in (value, low, falling, rising)
_SECTORS = ((1, 3, 0), (1, 0, 2), (3, 0, 1), (0, 2, 1), (0, 1, 3), (2, 1, 0))
_BYTES = np.arange(256)


def look_up(images: torch.Tensor, tables: Tables) -> torch.Tensor:
    """(N, C, H, W) uint8 with each value replaced, by a table for each image."""
    count, channels = images.shape[:2]
    if not images.is_cuda:
        planes = images.reshape(count * channels, -1).numpy()
        rows = tables[:, :channels].reshape(count * channels, 256)
        # a sixth of the time of NumPy's `take`, which makes indices of 64 bits
        made = [
            plane.tobytes().translate(row.tobytes())
            for plane, row in zip(planes, rows, strict=True)
        ]
        return torch.frombuffer(bytearray(b"".join(made)), dtype=torch.uint8).view(images.shape)
    own = copy_to(images.device, torch.from_numpy(tables[:, :channels].copy()))
    return own.gather(2, images.flatten(2).long()).view(images.shape)


def look_up_hsv(images: torch.Tensor, tables: Tables) -> torch.Tensor:
    """The same of hue, saturation and value; images of one channel stay as they are."""
    if images.shape[1] == 1:
        return images
    opencv = None if images.is_cuda else _find_opencv()
    if opencv is None:
        return _to_rgb(look_up(_to_hsv(images), tables))

    made = []
    for image, table in zip(images, tables, strict=True):
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        hsv = opencv.cvtColor(pixels, opencv.COLOR_RGB2HSV)
        changed = opencv.LUT(hsv, table.T.reshape(1, 256, 3))
        made.append(torch.from_numpy(opencv.cvtColor(changed, opencv.COLOR_HSV2RGB)))
    return torch.stack(made).permute(0, 3, 1, 2).contiguous()


@cache
def _find_opencv() -> Any:
    """OpenCV, if it is installed; else None."""
    try:
        import cv2
    except Exception:  # an installation may be broken in any way
        return None
    return cv2


def _to_hsv(images: torch.Tensor) -> torch.Tensor:
    red, green, blue = images.to(torch.int32).unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    places = np.arange(1, 256)
    shares = np.rint((255 << _BITS) / places), np.rint((180 << _BITS) / (6.0 * places))
    tables = np.zeros((2, 256), np.int32)
    tables[:, 1:] = shares
    of_value, of_chroma = copy_to(images.device, torch.from_numpy(tables))

    half = 1 << (_BITS - 1)
    saturation = (chroma * of_value[value.long()] + half) >> _BITS
    sixths = torch.where(
        value == red,
        green - blue,
        torch.where(value == green, blue - red + 2 * chroma, red - green + 4 * chroma),
    )
    hue = (sixths * of_chroma[chroma.long()] + half) >> _BITS
    hue = torch.where(hue < 0, hue + 180, hue)
    return torch.stack([hue, saturation, value], 1).clamp_(0, 255).to(torch.uint8)


def _to_rgb(images: torch.Tensor) -> torch.Tensor:
    hue, saturation, value = images.to(torch.float32).unbind(1)
    saturation = saturation * (1 / 255)
    hue = hue * (6 / 180)
    sector = hue.floor()
    rest = hue - sector

    tabs = torch.stack(
        [
            value,
            value - value * saturation,
            value - value * saturation * rest,
            value - value * saturation + value * saturation * rest,
        ],
        1,
    )
    places = copy_to(
        images.device,
        torch.tensor(_SECTORS, dtype=torch.int64, device="cpu").T.flip(0).contiguous(),
    )
    at = places[:, sector.long() % 6].transpose(0, 1)
    # with no saturation all three are the value, as every place of the table is then
    return tabs.gather(1, at).add_(1e-4).to(torch.uint8)


class _Tables(NamedTuple):
    """
    Attributes:
        hue: (6 × 256 × 256,) uint8 by which color is the highest and which the lowest, by the
            highest less the lowest, and by the highest less the middle one.
        saturation: (256 × 256,) uint8 by the highest color, and by it less the lowest one.
        middle: (256 × 256,) what is left of the value in the middle color, by saturation and hue.
        lowest: (256,) what is left of it in the lowest one, by saturation.
        order: (3, 256) int32 by hue, for red, green and blue: 0, 1 or 2 for the highest, the middle
            or the lowest of the three.
    """

    hue: torch.Tensor
    saturation: torch.Tensor
    middle: torch.Tensor
    lowest: torch.Tensor
    order: torch.Tensor


def turn_hue(images: torch.Tensor, shares: NDArray[np.float64]) -> torch.Tensor:
    """(N, 3, H, W) uint8 whose hue is turned by these shares of the full circle, (N,)."""
    count, device = len(images), images.device
    tables = _tables(device)
    pixels = images.to(torch.int32)
    red, green, blue = pixels.unbind(1)
    high, low = pixels.amax(1), pixels.amin(1)
    span = high - low
    # the highest less the middle one
    rest = (high * 2).add_(low).sub_(pixels.sum(1, dtype=torch.int32))

    # red is the highest: 0 or 1, green: 2 or 3, blue: 4 or 5
    least_blue, least_red = ((color == low).to(torch.int32) for color in (blue, red))
    others = torch.where(green == high, least_blue + 2, least_red.add_(4))
    case = torch.where(red == high, least_blue, others)
    place = case.mul_(256).add_(span).mul_(256).add_(rest).flatten()

    turns = torch.from_numpy(np.trunc(shares * 255).astype(np.int32)).view(-1, 1)
    hue = tables.hue.index_select(0, place).to(torch.int32).view(count, -1)
    hue = hue.add_(copy_to(device, turns)).bitwise_and_(255).flatten()
    value = high.flatten()
    place = (value * 256).add_(span.flatten())
    saturation = tables.saturation.index_select(0, place).to(torch.int32)

    three = torch.empty((3, len(value)), dtype=torch.uint8, device=device)
    three[0] = value
    place = (saturation * 256).add_(hue)
    three[1] = tables.middle.index_select(0, place).mul_(value).add_(0.5)
    three[2] = tables.lowest.index_select(0, saturation).mul_(value).add_(0.5)

    out, flat = torch.empty_like(images), three.flatten()
    each = torch.arange(len(value), dtype=torch.int32, device=device)
    for channel, order in enumerate(tables.order):
        place = (order * len(value)).index_select(0, hue).add_(each)
        out[:, channel] = flat.index_select(0, place).view(high.shape)
    return out


@lru_cache
def _tables(device: torch.device) -> _Tables:
    shares = _quotient(_BYTES, _BYTES[:, None]).astype(np.float64)
    one = np.float32(1)
    sixths = [
        *((shares.astype(np.float32) - one), (one - shares.astype(np.float32))),
        *(2.0 + 1.0 - shares, 2.0 + shares - 1.0, 4.0 + 1.0 - shares, 4.0 + shares - 1.0),
    ]
    places = _through_float(np.fmod(_through_float(np.stack(sixths)) / 6 + 1, 1))
    hue = _to_bytes(places * 255)
    hue[:, 0] = 0  # a gray has none
    saturation = _to_bytes(_quotient(_BYTES, _BYTES[:, None]).astype(np.float64) * 255)

    place = _BYTES * 6.0 / 255
    sector = np.floor(place)
    part = _through_float(place - sector)
    share = _through_float(_BYTES[:, None] / 255)
    falling, rising = _through_float(share * part), share * (1 - part)
    middle = 1 - np.where(sector % 2 == 1, falling, rising)

    # what red, green and blue are in each sector
    order = np.array([[0, 1, 2, 2, 1, 0], [1, 0, 0, 1, 2, 2], [2, 2, 1, 0, 0, 1]], np.int32)
    arrays = (
        *(hue.ravel(), saturation.ravel(), middle.ravel(), 1 - share.ravel()),
        order[:, sector.astype(int) % 6],
    )
    # a table stays in memory that was made outside of inference mode
    with torch.inference_mode(False):
        return _Tables(
            *(torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in arrays)
        )


def _quotient(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.float32]:
    divisor: NDArray[np.float32] = np.maximum(other, 1).astype(np.float32)
    return one.astype(np.float32) / divisor


def _through_float(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values.astype(np.float32).astype(np.float64)


def _to_bytes(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    return values.astype(np.int64).clip(0, 255).astype(np.uint8)
