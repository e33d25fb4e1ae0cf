"""Turns the hue as torchvision's `adjust_hue` of a PIL image does: by way of Pillow's HSV, whose
hue, saturation and value have 8 bits. The result is equal to torchvision's for every color.

As in Pillow's Convert.c (`rgb2hsv_row`, `hsv2rgb`), what is a `float` there is rounded to float32,
and what is between is float64. All divisions are in tables, which takes less time than Pillow does.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.transfer import copy_to

_BYTES = np.arange(256)


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
