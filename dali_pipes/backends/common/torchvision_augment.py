"""The augmentation operations of torchvision, one image at a time, on the CPU or a GPU.

Some of torchvision's functions take several times as long as necessary, or depend on a mode of
PyTorch (the default dtype, autocast, the precision of matrix products, the number of threads).
Those are implemented here with the same arithmetic. About one pixel in a hundred thousand differs
by one step, since its sum is rounded in another order (docs/augmentation.md).
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import grid_sample
from torchvision.transforms.v2 import functional as F

from dali_pipes.backends.common.pillow_affine import affine_of_pillow, move_mask_by_pillow
from dali_pipes.plan.augment.operations import (
    CODE,
    MOVES,
    OPS,
    Codes,
    Numbers,
    Slot,
    affine_matrices,
)
from dali_pipes.plan.geometry import Pair

_TOGETHER = 32  # images that a GPU equalizes at once
_ROUNDING = 1e-5  # of sums of bilinear weights in float32


def augment(
    image: torch.Tensor, slots: tuple[Slot, ...], ops: Codes, magnitudes: Numbers
) -> torch.Tensor:
    """(C, H, W) uint8 after one operation from each slot."""
    # plane after plane: in any other order some functions take six times as long
    image = image.contiguous()
    for slot, code, magnitude in zip(slots, ops.tolist(), magnitudes.tolist(), strict=True):
        image = _apply(image, OPS[code], magnitude, slot)
    return image


def augment_batch(
    images: torch.Tensor, slots: tuple[Slot, ...], ops: Codes, magnitudes: Numbers
) -> torch.Tensor:
    """(N, C, H, W) uint8 after one operation from each slot, `ops` and `magnitudes` being (N, K);
    those whose operations are "Identity" are as they were.
    """
    images = images.clone(memory_format=torch.contiguous_format)
    for place, slot in enumerate(slots):
        for code in np.unique(ops[:, place]).tolist():
            chosen = np.flatnonzero(ops[:, place] == code).tolist()
            if OPS[code] == "EqualizeInSteps" and images.is_cuda:
                _equalize_together(images, chosen)
            elif OPS[code] != "Identity":
                for at in chosen:
                    images[at] = _apply(images[at], OPS[code], float(magnitudes[at, place]), slot)
    return images


def _equalize_together(images: torch.Tensor, chosen: list[int]) -> None:
    """Equalizes these images, several in one call of torchvision's function, which starts twenty
    kernels on a GPU whatever their number, and takes 30 bytes for each value.
    """
    for first in range(0, len(chosen), _TOGETHER):
        places = chosen[first : first + _TOGETHER]
        equalized = F.equalize(torch.stack([images[at] for at in places]))
        for at, image in zip(places, equalized, strict=True):
            images[at] = image


def augment_mask(
    mask: torch.Tensor,
    slots: tuple[Slot, ...],
    ops: Codes,
    magnitudes: Numbers,
    moves: NDArray[np.float64],
    outside: int,
) -> torch.Tensor:
    """(H, W) of integers, moved as the operations and then the matrices `moves` move an image, to
    the nearest pixel.

    Pixels that come from outside the mask get the value `outside`.
    """
    for slot, code, magnitude in zip(slots, ops.tolist(), magnitudes.tolist(), strict=True):
        # the other operations leave every pixel where it is
        if OPS[code] not in MOVES:
            continue
        if slot.fill is None:
            nearest = replace(slot, interpolation="nearest")
            mask = _apply(mask[None], OPS[code], magnitude, nearest, float(outside))[0]
        else:
            # as its image is moved
            matrix = _matrix(code, magnitude, (mask.shape[0], mask.shape[1]))
            mask = move_mask_by_pillow(mask, matrix.tolist(), outside)
    for matrix in moves:
        mask = _warp(mask[None], matrix, "nearest", float(outside))[0]
    return mask


def _apply(
    image: torch.Tensor, op: str, magnitude: float, slot: Slot, fill: float | None = None
) -> torch.Tensor:
    match op:
        case "Identity":
            return image
        case "ShearX" | "ShearY" | "Rotate" | "ShiftX" | "ShiftY":
            return _affine(image, op, magnitude, slot, fill)
        case "TranslateX" | "TranslateY":
            most = image.shape[2 if op == "TranslateX" else 1]
            # rounded towards zero, as the plan's table says; a larger shift leaves nothing to see
            pixels = min(max(int(magnitude), -most), most)
            return F.pad(
                image,
                [pixels, 0, -pixels, 0] if op == "TranslateX" else [0, pixels, 0, -pixels],
                fill=fill,
            )
        case "Brightness":
            return _blend(image, None, 1 + magnitude)
        case "Color":
            # torchvision leaves an image of one channel as it is
            return image if len(image) == 1 else _blend(image, _gray(image), 1 + magnitude)
        case "Contrast":
            gray = _gray(image)  # whole numbers, whose sum as float64 is exact in any order
            return _blend(
                image,
                (gray.sum(dtype=torch.float64) / gray.numel()).to(torch.float32),
                1 + magnitude,
            )
        case "Sharpness":
            return _sharpness(image, 1 + magnitude)
        case "Posterize":
            return F.posterize(image, int(magnitude))
        case "Solarize":
            return image ^ (image.to(torch.float32) >= 255 * magnitude).to(torch.uint8).mul_(255)
        case "AutoContrast":
            return F.autocontrast(image)
        case "Equalize":
            return _equalize(image)
        case "EqualizeInSteps":
            return F.equalize(image) if image.is_cuda else _equalize_in_steps(image)
        case "SolarizeAdd":
            raised = image.to(torch.int16).add_(int(magnitude)).clamp_(max=255).to(torch.uint8)
            return torch.where(image < 128, raised, image)
        case "Invert":
            return F.invert(image)
        case "Hue":
            return _hue(image, magnitude)
        case "GaussianBlur":
            return _blur(image, slot.kernel_size, magnitude)

    raise ValueError(op)


def _affine(
    image: torch.Tensor, op: str, magnitude: float, slot: Slot, fill: float | None
) -> torch.Tensor:
    """The image sheared or rotated; `fill` as for `_warp`."""
    shape = image.shape[1], image.shape[2]
    matrix = _matrix(CODE[op], magnitude, shape)
    if slot.fill is not None:
        return affine_of_pillow(image, matrix.tolist(), slot)
    return _warp(image, matrix, slot.interpolation, fill)


def _matrix(code: int, magnitude: float, shape: Pair) -> NDArray[np.float64]:
    """(2, 3) of one operation, as `affine_matrices` has them."""
    (matrix,) = affine_matrices(np.array([code]), np.array([magnitude]), shape)
    return matrix


def _warp(
    image: torch.Tensor, matrix: NDArray[np.float64], interpolation: str, fill: float | None
) -> torch.Tensor:
    """The image moved by a matrix of (2, 3) as `affine_matrices` has them.

    Pixels from outside the image are `fill`, or black if that is None. The source of each pixel is
    computed without a matrix product, which torchvision uses. In autocast such a product is in
    bfloat16, and on a GPU in TensorFloat-32 if the program allows that for its model.
    """
    height, width = image.shape[1:]

    # centres of pixels; the matrix counts from the corner of the first one
    y, x = (
        torch.arange(size, dtype=torch.float64, device=image.device) + 0.5
        for size in (height, width)
    )
    sources = [
        (x * across + shift) + (y * down)[:, None] for across, down, shift in matrix.tolist()
    ]
    # `grid_sample` takes places from -1 to 1
    places = [
        source.mul_(2 / size).sub_(1) for source, size in zip(sources, (width, height), strict=True)
    ]
    grid = torch.stack(places, dim=2).to(torch.float32)[None]

    layers = image[None].to(torch.float32)
    if fill is not None:
        # one more layer, which tells where anything of the image is
        layers = torch.cat([layers, torch.ones_like(layers[:, :1])], dim=1)

    moved = grid_sample(
        layers, grid, mode=interpolation, padding_mode="zeros", align_corners=False
    )[0]
    if fill is not None:
        moved = torch.where(moved[-1:] < 0.5, fill, moved[:-1])
    return moved if image.is_floating_point() else moved.round_().to(image.dtype)


def _blend(image: torch.Tensor, other: torch.Tensor | None, share: float) -> torch.Tensor:
    """`share` of the image and the rest of `other`, which broadcasts with it; None is black."""
    mixed = image.to(torch.float32).mul_(share)
    return (
        (mixed if other is None else mixed.add_(other, alpha=1.0 - share))
        .clamp_(0, 255)
        .to(torch.uint8)
    )


def _gray(image: torch.Tensor) -> torch.Tensor:
    """(1, H, W) float32 of whole numbers, weighted as torchvision's rgb_to_grayscale; an image of
    one channel as it is.
    """
    if len(image) == 1:
        return image.to(torch.float32)
    red, green, blue = image.to(torch.float32)
    return red.mul_(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()[None]


def _sharpness(image: torch.Tensor, share: float) -> torch.Tensor:
    """torchvision's `adjust_sharpness`, whose 3 × 3 kernel has ones around a five.

    Sums of 16-bit integers replace the convolution.
    """
    # torchvision leaves such images as they are
    if min(image.shape[1:]) < 3:
        return image

    pixels = image.to(torch.int16)
    rows = (pixels[:, :-2] + pixels[:, 1:-1]).add_(pixels[:, 2:])
    centre = pixels[:, 1:-1, 1:-1]
    # 4 more of the centre make the kernel's five; its numbers add up to 13
    smooth = (
        (rows[:, :, :-2] + rows[:, :, 1:-1])
        .add_(rows[:, :, 2:])
        .add_(centre, alpha=4)
        .to(torch.float32)
        .div_(13)
        .round_()
    )

    out = image.clone()  # the outermost pixels stay as they are
    out[:, 1:-1, 1:-1] = smooth.add_(centre.to(torch.float32).sub_(smooth), alpha=share).clamp_(
        0, 255
    )
    return out


def _blur(image: torch.Tensor, size: int, sigma: float) -> torch.Tensor:
    """torchvision's `gaussian_blur`, first along the columns and then along the rows.

    torchvision convolves with the product of both at once.
    """
    places = torch.linspace(
        -(size - 1) / 2, (size - 1) / 2, size, dtype=torch.float32, device="cpu"
    )
    weights = torch.exp(-0.5 * (places / sigma) ** 2)
    kernel, margin, (_, height, width) = (weights / weights.sum()).tolist(), size // 2, image.shape

    padded = torch.nn.functional.pad(image[None].to(torch.float32), [margin] * 4, mode="reflect")[0]
    columns = _weighted(kernel, [padded[:, first : first + height] for first in range(size)])
    return (
        _weighted(kernel, [columns[:, :, first : first + width] for first in range(size)])
        .round_()
        .to(torch.uint8)
    )


def _weighted(weights: list[float], images: list[torch.Tensor]) -> torch.Tensor:
    total = images[0] * weights[0]
    for weight, image in zip(weights[1:], images[1:], strict=True):
        total.add_(image, alpha=weight)
    return total


def _hue(image: torch.Tensor, share: float) -> torch.Tensor:
    """torchvision's `adjust_hue`: shifts HSV's hue by a share of the full circle.

    It computes no HSV image; the arithmetic is that of the DALI graph.
    """
    red, green, blue = image.to(torch.float32).div_(255)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)

    # in sixths of the circle: red is at 0, green at 2, blue at 4
    divisor = chroma + (chroma == 0)
    is_red, is_green = value == red, value == green
    sixths = torch.where(
        is_green, (blue - red).div_(divisor).add_(2), (red - green).div_(divisor).add_(4)
    )
    # 6 more, the full circle, so that no sum is negative
    sixths = torch.where(is_red, (green - blue).div_(divisor), sixths).add_(6 + 6 * share)

    # back to red, green and blue, with n = 5, 3 and 1: value - chroma · max(0, min(k, 4 - k, 1)),
    # where k is hue + n modulo 6
    out = torch.empty_like(image)
    for channel, offset in zip(out, (5.0, 3.0, 1.0), strict=True):
        place = sixths + offset
        place.sub_((place / 6).floor_(), alpha=6)
        place = torch.minimum(place, 4 - place).clamp_(0, 1)
        # torchvision scales back by 255.999, and truncates
        channel.copy_((value - place.mul_(chroma)).mul_(255.999))
    return out


def _equalize(image: torch.Tensor) -> torch.Tensor:
    """Flattens each channel's histogram as OpenCV's equalizeHist and DALI do."""
    pixels = image[0].numel()
    out = torch.empty_like(image)

    for channel, flat in enumerate(image):
        count = torch.bincount(flat.flatten(), minlength=256)
        below = count.cumsum(0)
        darkest = below[(count > 0).byte().argmax()]
        scale = 255 / (pixels - darkest).clamp(min=1).float()
        table = ((below - darkest).clamp(min=0).float() * scale).round().byte()
        # index_select takes a quarter of the time of table[flat]
        equalized = table.index_select(0, flat.flatten().int()).view_as(flat)
        out[channel] = torch.where(darkest == pixels, flat, equalized)

    return out


def _equalize_in_steps(image: torch.Tensor) -> torch.Tensor:
    """torchvision's `equalize`, which is Pillow's, on the CPU.

    A step of 255 stands for a whole number of pixels, rounded down, and a value counts the pixels
    below it, where OpenCV counts its own too.
    """
    out = torch.empty_like(image)
    for channel, flat in zip(out, image, strict=True):
        count = torch.bincount(flat.flatten(), minlength=256)
        upto = count.cumsum(0)
        brightest = int(count.nonzero()[-1])
        step = int(upto[-1] - count[brightest]) // 255
        if not step:
            channel.copy_(flat)
            continue
        table = ((upto - count + step // 2) // step).clamp_(max=255).to(torch.uint8)
        # index_select takes a quarter of the time of table[flat]
        channel.copy_(table.index_select(0, flat.flatten().int()).view_as(flat))
    return out
