"""Affine operations as Pillow's `Image.transform` makes them: sharp edges, a color around the
image, and a bicubic filter of its own.

On the CPU Pillow itself does it. On a GPU the same arithmetic is that of `_warp`, within one step.
"""

from typing import Any

import numpy as np
import torch
from PIL import Image

from dali_pipes.backends.common.gray import as_array, from_array
from dali_pipes.plan.augment.operations import Slot

_METHODS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def affine_of_pillow(image: torch.Tensor, matrix: list[list[float]], slot: Slot) -> torch.Tensor:
    """(C, H, W) uint8, moved.

    Args:
        matrix: (2, 3) from pixels of the result to those of the image, counted from the corner of
            the first pixel.
    """
    # of one channel the three numbers are equal
    fill = (slot.fill or (0, 0, 0))[: len(image)]
    if image.is_cuda:
        return _warp(image, matrix, slot.interpolation, fill)

    picture = from_array(image.permute(1, 2, 0).contiguous().numpy())
    moved = _transform(picture, matrix, slot.interpolation, fill if len(fill) == 3 else fill[0])
    return torch.from_numpy(as_array(moved).copy()).permute(2, 0, 1).contiguous()


def move_mask_by_pillow(
    mask: torch.Tensor, matrix: list[list[float]], outside: int
) -> torch.Tensor:
    """(H, W) of whole numbers on the CPU, moved as `affine_of_pillow` moves an image."""
    # int32: Pillow has no other pictures of more than 8 bits
    values = mask if mask.dtype == torch.uint8 else mask.to(torch.int32)
    picture = Image.fromarray(values.contiguous().numpy())
    moved = _transform(picture, matrix, "nearest", outside)
    return torch.from_numpy(np.asarray(moved).copy()).to(mask.dtype)


def _transform(
    picture: Image.Image, matrix: list[list[float]], interpolation: str, fill: Any
) -> Image.Image:
    numbers = [number for row in matrix for number in row]
    return picture.transform(
        picture.size,
        Image.Transform.AFFINE,
        numbers,
        resample=_METHODS[interpolation],
        fillcolor=fill,
    )


def _warp(
    image: torch.Tensor, matrix: list[list[float]], interpolation: str, fill: tuple[int, ...]
) -> torch.Tensor:
    """As Pillow's Geometry.c: a pixel whose centre comes from outside the image is `fill`, and
    neighbours beyond an edge are those at the edge.
    """
    height, width = image.shape[1:]
    y, x = (
        torch.arange(size, dtype=torch.float64, device=image.device) + 0.5
        for size in (height, width)
    )
    across, down = ((x * a + shift) + (y * b)[:, None] for a, b, shift in matrix)
    inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)

    weigh = _WEIGHTS[interpolation]
    (columns, over), (rows, under) = weigh(across), weigh(down)
    flat = image.flatten(1).to(torch.float64)
    total = torch.zeros((len(image), height, width), dtype=torch.float64, device=image.device)
    for row, share in zip(rows, under, strict=True):
        line = row.clamp(0, height - 1) * width
        for column, part in zip(columns, over, strict=True):
            places = (line + column.clamp(0, width - 1)).flatten()
            taken = flat.index_select(1, places).view(-1, height, width)
            total += taken * (share * part)

    # Pillow cuts fractions off; 1e-6, so that a sum of rounded weights is a whole number again
    moved = total.add_(1e-6).clamp(0, 255).floor()
    color = torch.tensor(fill, dtype=moved.dtype, device=image.device).view(-1, 1, 1)
    return torch.where(inside, moved, color).to(torch.uint8)


Taps = tuple[list[torch.Tensor], list[torch.Tensor]]


def _bilinear(place: torch.Tensor) -> Taps:
    first = (place - 0.5).floor()
    share = place - 0.5 - first
    return [first.long(), first.long() + 1], [1 - share, share]


def _bicubic(place: torch.Tensor) -> Taps:
    # the cubic convolution with a = -1
    first = (place - 0.5).floor()
    d = place - 0.5 - first
    weights = [
        ((2 - d) * d - 1) * d,
        (d - 2) * d * d + 1,
        ((1 - d) * d + 1) * d,
        (d - 1) * d * d,
    ]
    return [first.long() + at for at in (-1, 0, 1, 2)], weights


_WEIGHTS = {"bilinear": _bilinear, "bicubic": _bicubic}
