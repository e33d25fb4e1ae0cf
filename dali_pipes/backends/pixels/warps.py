"""The operations that move pixels, of images and of their masks, on the CPU or a GPU.

Those of a slot without a fill are torchvision's, of tensors. With one they are Pillow's
`Image.transform`: sharp edges, a color around the image, and a bicubic filter of its own. On the
CPU Pillow itself does that, on a GPU the same arithmetic, within one step.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import grid_sample, pad

from dali_pipes.backends.pixels.gray import as_tensor, from_array
from dali_pipes.backends.transfer import copy_to
from dali_pipes.plan.geometry import Pair
from dali_pipes.plan.steps.operations import CODE, MOVES, OPS, Codes, Numbers, Slot, affine_matrices

Magnitudes = NDArray[np.float64]  # (N,), one of each image
Matrices = NDArray[np.float64]  # (N, 2, 3), as of `affine_matrices`
Taps = tuple[list[torch.Tensor], list[torch.Tensor]]  # places, and the weight of each


def augment_mask(
    mask: torch.Tensor,
    slots: tuple[Slot, ...],
    ops: Codes,
    magnitudes: Numbers,
    moves: Matrices,
    outside: int,
) -> torch.Tensor:
    """(H, W) of integers on the CPU, moved as the operations and then the matrices `moves` move an
    image, to the nearest pixel.

    Pixels that come from outside the mask get the value `outside`.
    """
    masks = mask[None, None]
    for slot, code, magnitude in zip(slots, ops.tolist(), magnitudes.tolist(), strict=True):
        # the other operations leave every pixel where it is
        if OPS[code] in MOVES:
            nearest = replace(slot, interpolation="nearest")
            masks = move(masks, OPS[code], np.array([magnitude]), nearest, outside)
    for matrix in moves:
        masks = _warp(masks, matrix[None], "nearest", outside)
    return masks[0, 0]


def move(
    images: torch.Tensor, op: str, magnitudes: Magnitudes, slot: Slot, outside: int | None = None
) -> torch.Tensor:
    """(N, C, H, W) after an operation of `MOVES`.

    Args:
        outside: what comes from outside the image, if it is not black or the slot's color.
    """
    channels, height, width = images.shape[1:]
    if op in ("TranslateX", "TranslateY") and len(images) == 1:
        most = width if op == "TranslateX" else height
        # rounded towards zero, as the plan's table says; a larger shift leaves nothing to see
        pixels = min(max(int(magnitudes[0]), -most), most)
        sides = [pixels, -pixels] if op == "TranslateX" else [0, 0, pixels, -pixels]
        return pad(images, sides, value=float(outside or 0))

    matrices = affine_matrices(np.full(len(images), CODE[op]), magnitudes, (height, width))
    # whole pixels, which `grid_sample` moves exactly
    if op in ("TranslateX", "TranslateY"):
        return _warp(images, matrices, "nearest", outside)
    if slot.fill is None:
        return _warp(images, matrices, slot.interpolation, outside)
    # of one channel the three numbers are equal
    fill = slot.fill[:channels] if outside is None else (outside,)
    warp = _warp_as_pillow if images.is_cuda else _warp_by_pillow
    return warp(images, matrices, slot.interpolation, fill)


def _sources(
    matrices: Matrices, shape: Pair, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the centre of each pixel comes from: x and y, (N, H, W) float64, counted from the
    corner of the first pixel.

    There is no matrix product, which torchvision uses. In autocast such a product is in bfloat16,
    and on a GPU in TensorFloat-32 if the program allows that for its model.
    """
    y, x = (torch.arange(size, dtype=torch.float64, device=device) + 0.5 for size in shape)
    rows = copy_to(device, torch.from_numpy(matrices))[..., None, None].unbind(1)
    across, down = ((x * a + shift) + y[:, None] * b for a, b, shift in (r.unbind(1) for r in rows))
    return across, down


def _warp(
    images: torch.Tensor, matrices: Matrices, interpolation: str, outside: int | None
) -> torch.Tensor:
    """(N, C, H, W), each moved by its matrix; what comes from outside is black for None."""
    height, width = images.shape[2:]
    across, down = _sources(matrices, (height, width), images.device)
    # `grid_sample` takes places from -1 to 1
    places = [across.mul_(2 / width).sub_(1), down.mul_(2 / height).sub_(1)]
    grid = torch.stack(places, dim=3).to(torch.float32)

    layers = images.to(torch.float32)
    if outside is not None:
        # one more layer, which tells where anything of the image is
        layers = torch.cat([layers, torch.ones_like(layers[:, :1])], dim=1)

    moved = grid_sample(layers, grid, mode=interpolation, padding_mode="zeros", align_corners=False)
    if outside is not None:
        moved = torch.where(moved[:, -1:] < 0.5, float(outside), moved[:, :-1])
    return moved if images.is_floating_point() else moved.round_().to(images.dtype)


def _warp_by_pillow(
    images: torch.Tensor, matrices: Matrices, interpolation: str, fill: tuple[int, ...]
) -> torch.Tensor:
    """A single image on the CPU, or a mask of whole numbers, moved by its matrix."""
    # int32: Pillow has no other pictures of more than 8 bits
    pixels = images[0] if images.dtype == torch.uint8 else images[0].to(torch.int32)
    picture = from_array(pixels.permute(1, 2, 0).contiguous().numpy())
    moved = picture.transform(
        picture.size,
        Image.Transform.AFFINE,
        matrices.flatten().tolist(),
        resample=Image.Resampling[interpolation.upper()],
        fillcolor=fill if len(fill) == 3 else fill[0],
    )
    return as_tensor(moved).permute(2, 0, 1).contiguous().to(images.dtype)[None]


def _warp_as_pillow(
    images: torch.Tensor, matrices: Matrices, interpolation: str, fill: tuple[int, ...]
) -> torch.Tensor:
    """(N, C, H, W) uint8, each moved by its matrix.

    As Pillow's Geometry.c: a pixel whose centre comes from outside the image is `fill`, and
    neighbours beyond an edge are those at the edge.
    """
    channels, height, width = images.shape[1:]
    across, down = _sources(matrices, (height, width), images.device)
    inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)

    weigh = _WEIGHTS[interpolation]
    (columns, over), (rows, under) = weigh(across), weigh(down)
    flat = images.flatten(2).to(torch.float64)
    total = torch.zeros_like(flat).view(images.shape)
    for row, share in zip(rows, under, strict=True):
        line = row.clamp(0, height - 1) * width
        for column, part in zip(columns, over, strict=True):
            places = (line + column.clamp(0, width - 1)).flatten(1)[:, None]
            taken = flat.gather(2, places.expand(-1, channels, -1)).view(images.shape)
            total += taken * (share * part)[:, None]

    # Pillow cuts fractions off; 1e-6, so that a sum of rounded weights is a whole number again
    moved = total.add_(1e-6).clamp_(0, 255).to(torch.uint8)
    color = torch.tensor(fill, dtype=torch.uint8, device="cpu").view(-1, 1, 1)
    return torch.where(inside[:, None], moved, copy_to(images.device, color))


def _take_one(place: torch.Tensor) -> Taps:
    return [place.floor().long()], [torch.ones_like(place)]


def _weigh_two(place: torch.Tensor) -> Taps:
    first = (place - 0.5).floor()
    share = place - 0.5 - first
    return [first.long(), first.long() + 1], [1 - share, share]


def _weigh_four(place: torch.Tensor) -> Taps:
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


_WEIGHTS = {"nearest": _take_one, "bilinear": _weigh_two, "bicubic": _weigh_four}
