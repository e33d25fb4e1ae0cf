"""The augmentation operations of torchvision on batches of images, on the CPU or a GPU.

Some of torchvision's functions take several times as long as necessary, or depend on a mode of
PyTorch (the default dtype, autocast, the precision of matrix products, the number of threads). So
the same arithmetic is written here, with a magnitude for each image. About one pixel in a hundred
thousand differs by one step, since its sum is rounded in another order (docs/augmentation.md).
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from dali_pipes.backends.pixels.gray import HALF, WEIGHTS
from dali_pipes.backends.pixels.tables import look_up, look_up_hsv, turn_hue
from dali_pipes.backends.pixels.warps import Magnitudes, move
from dali_pipes.backends.transfer import copy_to
from dali_pipes.plan.steps.operations import CODE, MOVES, OPS, TABLES, Codes, Numbers, Slot

_TOGETHER = 64  # images that a GPU changes at once, some of them with 50 bytes for each value

Tables = NDArray[np.uint8]
NO_TABLES: Tables = np.zeros((0, 3, 256), np.uint8)
Factor = float | torch.Tensor  # as `_each` makes it


def augment(
    images: torch.Tensor,
    slots: tuple[Slot, ...],
    ops: Codes,
    magnitudes: Numbers,
    tables: Tables = NO_TABLES,
) -> torch.Tensor:
    """(N, C, H, W) uint8 after one operation from each slot, in new memory.

    Args:
        ops, magnitudes: (N, K), for K slots.
        tables: as of `Augmentation`.
    """
    # plane after plane: in any other order some functions take six times as long
    images = images.clone(memory_format=torch.contiguous_format)
    strengths = magnitudes.astype(np.float64)  # as Python's numbers are
    if images.is_cuda:
        for place, slot in enumerate(slots):
            _change_together(images, ops[:, place], strengths[:, place], slot, tables)
        return images

    # one image at a time: it stays in the cache
    for at, codes in enumerate(ops.tolist()):
        image = images[at : at + 1]
        for slot, code, strength in zip(slots, codes, strengths[at, :, None], strict=True):
            image = _apply(image, OPS[code], strength, slot, tables)
        images[at] = image[0]
    return images


def _change_together(
    images: torch.Tensor,
    ops: Codes,
    magnitudes: Magnitudes,
    slot: Slot,
    tables: Tables = NO_TABLES,
) -> None:
    """Carries out an operation on each image, in place, on all at once that drew the same."""
    for code in set(ops.tolist()) - {CODE["Identity"]}:
        chosen = np.flatnonzero(ops == code)
        for first in range(0, len(chosen), _TOGETHER):
            rows = chosen[first : first + _TOGETHER]
            places = copy_to(images.device, torch.from_numpy(rows))
            chosen_images = images.index_select(0, places)
            made = _apply(chosen_images, OPS[code], magnitudes[rows], slot, tables)
            images.index_copy_(0, places, made)


def _apply(
    images: torch.Tensor, op: str, magnitudes: Magnitudes, slot: Slot, tables: Tables
) -> torch.Tensor:
    if op in MOVES:
        return move(images, op, magnitudes, slot)
    if op in TABLES:
        own = tables[magnitudes.astype(np.int64)]
        return look_up_hsv(images, own) if op == "HsvTable" else look_up(images, own)
    device = images.device
    match op:
        case "Identity":
            return images
        case "Brightness":
            return _blend(images, None, 1 + magnitudes)
        case "Color":
            # torchvision leaves an image of one channel as it is
            return images if images.shape[1] == 1 else _blend(images, _gray(images), 1 + magnitudes)
        case "Contrast":
            gray = _gray(images)  # whole numbers, whose sum as float64 is exact in any order
            total = gray.sum((1, 2, 3), keepdim=True, dtype=torch.float64)
            return _blend(images, (total / gray[0].numel()).to(torch.float32), 1 + magnitudes)
        case "Sharpness":
            return _sharpen(images, 1 + magnitudes)
        case "Posterize":
            dropped = 2 ** (8 - magnitudes.astype(np.int64))
            return images & _each((256 - dropped).astype(np.uint8), device)
        case "Solarize":
            bright = images.to(torch.float32) >= _each(255 * magnitudes, device)
            return images ^ bright.to(torch.uint8).mul_(255)
        case "AutoContrast":
            return _stretch(images)
        case "Equalize" | "EqualizeInSteps":
            return _equalize(images, in_steps=op == "EqualizeInSteps")
        case "SolarizeAdd":
            raised = images.to(torch.int16).add_(_each(magnitudes.astype(np.int16), device))
            return torch.where(images < 128, raised.clamp_(max=255).to(torch.uint8), images)
        case "Invert":
            return ~images
        case "Hue":
            return _turn_hue(images, magnitudes)
        case "GaussianBlur":
            return _blur(images, slot.kernel_size, magnitudes)
        case "PillowColor" | "PillowContrast":
            return _enhance(images, op == "PillowContrast", 1 + magnitudes)
        case "OpenCvColor":
            return images if images.shape[1] == 1 else _blend_by_opencv(images, 1 + magnitudes)
        case "OpenCvContrast":
            return _contrast_by_opencv(images, 1 + magnitudes)
        case "PillowHue":
            # torchvision leaves an image of one channel as it is
            return images if images.shape[1] == 1 else turn_hue(images, magnitudes)

    raise ValueError(op)


def _each(values: NDArray[Any], device: torch.device) -> Factor:
    """A number for each image, (N, 1, 1, 1), in which float64 becomes float32; for a single image
    the number itself, with the same results and nothing to copy to a GPU.
    """
    if len(values) == 1:
        return values.item()
    numbers = values.astype(np.float32) if values.dtype == np.float64 else values
    return copy_to(device, torch.from_numpy(numbers).view(-1, 1, 1, 1))


def _add(total: torch.Tensor, images: torch.Tensor, factor: Factor) -> torch.Tensor:
    """Adds factor · images, which broadcast with `total`, in place."""
    if isinstance(factor, torch.Tensor):
        return total.addcmul_(images, factor)
    return total.add_(images, alpha=factor)


def _blend(images: torch.Tensor, others: torch.Tensor | None, shares: Magnitudes) -> torch.Tensor:
    """A share of each image and the rest of `others`, which broadcast with them; None is black."""
    mixed = images.to(torch.float32).mul_(_each(shares, images.device))
    if others is not None:
        _add(mixed, others, _each(1 - shares, images.device))
    return mixed.clamp_(0, 255).to(torch.uint8)


def _gray(images: torch.Tensor) -> torch.Tensor:
    """(N, 1, H, W) float32 of whole numbers, weighted as torchvision's rgb_to_grayscale; images of
    one channel as they are.
    """
    values = images.to(torch.float32)
    if images.shape[1] == 1:
        return values
    red, green, blue = values.chunk(3, dim=1)
    return red.mul_(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()


def _enhance(images: torch.Tensor, contrast: bool, shares: Magnitudes) -> torch.Tensor:
    """Pillow's `ImageEnhance`, value for value: Color, or Contrast.

    As its Blend.c: other + share · (image - other) in float32, cut to a whole number.
    """
    if images.shape[1] == 1:
        others = images.to(torch.int32)
    else:
        red, green, blue = images.to(torch.int32).chunk(3, dim=1)
        others = (WEIGHTS[0] * red).add_(green, alpha=WEIGHTS[1]).add_(blue, alpha=WEIGHTS[2])
        others.add_(HALF).bitwise_right_shift_(16)
    if contrast:
        # whole numbers, whose sum is exact in any order
        total = others.sum((1, 2, 3), keepdim=True, dtype=torch.float64)
        others = (total / others[0].numel()).add_(0.5).floor_()
    if len(shares) == 1 and not shares[0]:
        return others.to(torch.uint8).expand(images.shape)
    others = others.to(torch.float32)
    mixed = images.to(torch.float32).sub_(others).mul_(_each(shares, images.device)).add_(others)
    return mixed.clamp_(0, 255).to(torch.uint8)


def _blend_by_opencv(images: torch.Tensor, shares: Magnitudes) -> torch.Tensor:
    """A share of each image and the rest of its gray, as OpenCV's `addWeighted` rounds them. Where
    it multiplies and adds at once, one value in a hundred differs by one step.
    """
    mixed = images.to(torch.float32).mul_(_each(shares, images.device))
    _add(mixed, _gray_by_opencv(images).to(torch.float32), _each(1 - shares, images.device))
    return mixed.round_().clamp_(0, 255).to(torch.uint8)


def _contrast_by_opencv(images: torch.Tensor, shares: Magnitudes) -> torch.Tensor:
    """albumentations' `adjust_contrast_torchvision`, which cuts to whole numbers."""
    gray = _gray_by_opencv(images)
    means = gray.sum((1, 2, 3), keepdim=True, dtype=torch.float64) / gray[0].numel()
    rest = means.mul_(_each(1 - shares, images.device)).to(torch.float32)
    mixed = images.to(torch.float32).mul_(_each(shares, images.device)).add_(rest)
    return mixed.clamp_(0, 255).to(torch.uint8)


def _gray_by_opencv(images: torch.Tensor) -> torch.Tensor:
    """(N, 1, H, W) int32: OpenCV's COLOR_RGB2GRAY (modules/imgproc/src/color_rgb.simd.hpp)."""
    pixels = images.to(torch.int32)
    if images.shape[1] == 1:
        return pixels
    red, green, blue = pixels.chunk(3, dim=1)
    total = (red * 9798).add_(green, alpha=19235).add_(blue, alpha=3735)
    return total.add_(1 << 14).bitwise_right_shift_(15)


def _sharpen(images: torch.Tensor, shares: Magnitudes) -> torch.Tensor:
    """torchvision's `adjust_sharpness`, whose 3 × 3 kernel has ones around a five.

    Sums of 16-bit integers replace the convolution.
    """
    # torchvision leaves such images as they are
    if min(images.shape[2:]) < 3:
        return images

    pixels = images.to(torch.int16)
    rows = (pixels[:, :, :-2] + pixels[:, :, 1:-1]).add_(pixels[:, :, 2:])
    centre = pixels[:, :, 1:-1, 1:-1]
    # 4 more of the centre make the kernel's five; its numbers add up to 13
    total = (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:]).add_(centre, alpha=4)
    smooth = total.to(torch.float32).div_(13).round_()
    detail = centre.to(torch.float32).sub_(smooth)

    out = images.clone()  # the outermost pixels stay as they are
    out[:, :, 1:-1, 1:-1] = _add(smooth, detail, _each(shares, images.device)).clamp_(0, 255)
    return out


def _blur(images: torch.Tensor, size: int, sigmas: Magnitudes) -> torch.Tensor:
    """torchvision's `gaussian_blur`, first along the columns and then along the rows.

    torchvision convolves with the product of both at once.
    """
    end = (size - 1) / 2
    places = torch.linspace(-end, end, size, dtype=torch.float32, device="cpu")
    widths = torch.from_numpy(sigmas).to(torch.float32)[:, None]
    weights = torch.exp(-0.5 * (places / widths) ** 2)
    kernels = (weights / weights.sum(1, keepdim=True)).numpy()
    factors = [_each(column, images.device) for column in kernels.T]
    margin, (height, width) = size // 2, images.shape[2:]

    padded = pad(images.to(torch.float32), [margin] * 4, mode="reflect")
    columns = _weigh(factors, [padded[:, :, at : at + height] for at in range(size)])
    rows = _weigh(factors, [columns[..., at : at + width] for at in range(size)])
    return rows.round_().to(torch.uint8)


def _weigh(factors: list[Factor], images: list[torch.Tensor]) -> torch.Tensor:
    total = images[0] * factors[0]
    for factor, image in zip(factors[1:], images[1:], strict=True):
        _add(total, image, factor)
    return total


def _turn_hue(images: torch.Tensor, shares: Magnitudes) -> torch.Tensor:
    """torchvision's `adjust_hue`: shifts HSV's hue by a share of the full circle.

    It computes no HSV image; the arithmetic is that of the DALI graph.
    """
    red, green, blue = images.to(torch.float32).div_(255).chunk(3, dim=1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)

    # in sixths of the circle: red is at 0, green at 2, blue at 4
    divisor = chroma + (chroma == 0)
    is_red, is_green = value == red, value == green
    sixths = torch.where(
        is_green, (blue - red).div_(divisor).add_(2), (red - green).div_(divisor).add_(4)
    )
    # 6 more, the full circle, so that no sum is negative
    turn = _each(6 + 6 * shares, images.device)
    sixths = torch.where(is_red, (green - blue).div_(divisor), sixths).add_(turn)

    # back to red, green and blue, with n = 5, 3 and 1: value - chroma · max(0, min(k, 4 - k, 1)),
    # where k is hue + n modulo 6
    out = torch.empty_like(images)
    for channel, offset in zip(out.chunk(3, dim=1), (5.0, 3.0, 1.0), strict=True):
        place = sixths + offset
        place.sub_((place / 6).floor_(), alpha=6)
        place = torch.minimum(place, 4 - place).clamp_(0, 1)
        # torchvision scales back by 255.999, and truncates
        channel.copy_((value - place.mul_(chroma)).mul_(255.999))
    return out


def _stretch(images: torch.Tensor) -> torch.Tensor:
    """torchvision's `autocontrast`: each channel stretched to all values, unless it has but one."""
    low, high = (limit((2, 3), True).to(torch.float32) for limit in (images.amin, images.amax))
    flat = low == high
    scale = (high - low).mul_(1 / 255).masked_fill_(flat, 1)
    stretched = images.to(torch.float32).sub_(low.masked_fill_(flat, 0)).div_(scale)
    return stretched.clamp_(0, 255).to(torch.uint8)


def _equalize(images: torch.Tensor, in_steps: bool) -> torch.Tensor:
    """Flattens each channel's histogram as OpenCV's equalizeHist and DALI do.

    Args:
        in_steps: as torchvision's `equalize` and Pillow do. There a step of 255 stands for a whole
            number of pixels, rounded down, and a value counts the pixels below it, where OpenCV
            counts its own too.
    """
    planes = images.flatten(0, 1).flatten(1)
    pixels, count = planes.shape[1], _count_values(planes)
    upto = count.cumsum(1)
    if in_steps:
        below = upto - count
        # of those below the brightest value
        step = below.masked_fill(count == 0, 0).amax(1, keepdim=True) // 255
        tables, stays = (below + step // 2) // step.clamp(min=1), step == 0
    else:
        darkest = upto.masked_fill(count == 0, pixels).amin(1, keepdim=True)
        scale = 255 / (pixels - darkest).clamp(min=1).to(torch.float32)
        tables = ((upto - darkest).clamp(min=0).to(torch.float32) * scale).round()
        stays = darkest == pixels
    same = torch.arange(256, dtype=torch.uint8, device=images.device)
    tables = torch.where(stays, same, tables.clamp(max=255).to(torch.uint8))
    return tables.gather(1, planes.long()).view_as(images)


def _count_values(planes: torch.Tensor) -> torch.Tensor:
    """(P, 256) int64: how often each value occurs in each of (P, pixels) uint8."""
    if not planes.is_cuda:
        return torch.stack([torch.bincount(plane, minlength=256) for plane in planes])
    # bincount would make the host wait for the GPU
    count = torch.zeros((len(planes), 256), dtype=torch.int64, device=planes.device)
    return count.scatter_add_(1, planes.long(), count.new_ones(()).expand(planes.shape))
