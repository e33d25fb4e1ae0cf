"""Operations by a table of what becomes of each value, on the CPU or a GPU.

OpenCV's hue, saturation and value of 8 bits are computed as OpenCV does (modules/imgproc/src/
color_hsv.simd.hpp, `RGB2HSV_b` and `HSV2RGB_b` of OpenCV 4): in whole numbers there, in float32
back, cut to whole numbers. About one value in a hundred differs by one step, since OpenCV rounds
the last ones of a row. Where OpenCV is installed, it makes them on the CPU, in a tenth of the time.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.transfer import copy_to

Tables = NDArray[np.uint8]  # (N, 3, 256), as of `Augmentation`

_BITS = 12  # of fractions in OpenCV's divisions
# blue, green and red of each sixth of the circle, by the place in (value, low, falling, rising)
_SECTORS = ((1, 3, 0), (1, 0, 2), (3, 0, 1), (0, 2, 1), (0, 1, 3), (2, 1, 0))


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
