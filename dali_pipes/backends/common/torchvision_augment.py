"""The augmentation operations of torchvision, one image at a time, on the CPU or a GPU.

Where torchvision's function takes several times as long as its pixels need, the same arithmetic stands here: equal but for single
pixels in a hundred thousand, by one step, whose sum is rounded in another order (docs/augmentation.md).
"""

import math
from dataclasses import replace

import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from dali_pipes.plan.augment.operations import AFFINE, OPS, Codes, Numbers, Slot


def augment(image: torch.Tensor, slots: tuple[Slot, ...], ops: Codes, magnitudes: Numbers) -> torch.Tensor:
    """(3, H, W) uint8, after one operation from each slot."""
    image = image.contiguous()  # whole planes: in any other order some functions take six times as long
    for slot, code, magnitude in zip(slots, ops.tolist(), magnitudes.tolist(), strict=True):
        image = _apply(image, OPS[code], magnitude, slot)
    return image


def augment_mask(mask: torch.Tensor, slots: tuple[Slot, ...], ops: Codes, magnitudes: Numbers, outside: int) -> torch.Tensor:
    """(H, W) of whole numbers, moved to the nearest pixel as the operations move an image; `outside` where nothing of it is."""
    for slot, code, magnitude in zip(slots, ops.tolist(), magnitudes.tolist(), strict=True):
        if OPS[code] in AFFINE:
            mask = _apply(mask[None], OPS[code], magnitude, replace(slot, interpolation="nearest"), float(outside))[0]
    return mask


def _apply(image: torch.Tensor, op: str, magnitude: float, slot: Slot, fill: float | None = None) -> torch.Tensor:
    match op:
        case "Identity":
            return image
        case "ShearX" | "ShearY":
            degrees = math.degrees(math.atan(magnitude))
            return _affine(image, slot, fill, shear=[degrees, 0.0] if op == "ShearX" else [0.0, degrees], center=[0, 0])
        case "TranslateX" | "TranslateY":
            most = image.shape[2 if op == "TranslateX" else 1]
            pixels = min(max(int(magnitude), -most), most)
            return F.pad(image, [pixels, 0, -pixels, 0] if op == "TranslateX" else [0, pixels, 0, -pixels], fill=fill)
        case "Rotate":
            return F.rotate(image, magnitude, InterpolationMode(slot.interpolation), fill=fill)
        case "Brightness":
            return F.adjust_brightness(image, 1 + magnitude)
        case "Color":
            return F.adjust_saturation(image, 1 + magnitude)
        case "Contrast":
            return F.adjust_contrast(image, 1 + magnitude)
        case "Sharpness":
            return _sharpness(image, 1 + magnitude)
        case "Posterize":
            return F.posterize(image, int(magnitude))
        case "Solarize":
            return image ^ (image >= 255 * magnitude).to(torch.uint8).mul_(255)
        case "AutoContrast":
            return F.autocontrast(image)
        case "Equalize":
            return _equalize(image)
        case "Invert":
            return F.invert(image)
        case "Hue":
            return _hue(image, magnitude)
        case "GaussianBlur":
            return _blur(image, slot.kernel_size, magnitude)
    raise ValueError(op)


def _affine(image: torch.Tensor, slot: Slot, fill: float | None, **options: list[float]) -> torch.Tensor:
    still = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    return F.affine(image, **still | options, interpolation=InterpolationMode(slot.interpolation), fill=fill)


def _sharpness(image: torch.Tensor, share: float) -> torch.Tensor:
    """`adjust_sharpness`, whose 3 × 3 kernel has ones around a five: sums of 16-bit integers in the place of a convolution."""
    if min(image.shape[1:]) < 3:
        return image
    pixels = image.to(torch.int16)
    rows = (pixels[:, :-2] + pixels[:, 1:-1]).add_(pixels[:, 2:])
    centre = pixels[:, 1:-1, 1:-1]
    smooth = (rows[:, :, :-2] + rows[:, :, 1:-1]).add_(rows[:, :, 2:]).add_(centre, alpha=4).to(torch.float32).div_(13).round_()
    out = image.clone()
    out[:, 1:-1, 1:-1] = smooth.add_(centre.to(torch.float32).sub_(smooth), alpha=share).clamp_(0, 255)
    return out


def _blur(image: torch.Tensor, size: int, sigma: float) -> torch.Tensor:
    """`gaussian_blur`, first along the columns and then along the rows; torchvision convolves with the product of both at once."""
    places = torch.linspace(-(size - 1) / 2, (size - 1) / 2, size)
    weights = torch.exp(-0.5 * (places / sigma) ** 2)
    kernel, margin, (_, height, width) = (weights / weights.sum()).tolist(), size // 2, image.shape
    padded = torch.nn.functional.pad(image[None].to(torch.float32), [margin] * 4, mode="reflect")[0]
    columns = _weighted(kernel, [padded[:, first : first + height] for first in range(size)])
    return _weighted(kernel, [columns[:, :, first : first + width] for first in range(size)]).round_().to(torch.uint8)


def _weighted(weights: list[float], images: list[torch.Tensor]) -> torch.Tensor:
    total = images[0] * weights[0]
    for weight, image in zip(weights[1:], images[1:], strict=True):
        total.add_(image, alpha=weight)
    return total


def _hue(image: torch.Tensor, share: float) -> torch.Tensor:
    """`adjust_hue`: HSV's hue shifted by a share of the full circle, without HSV; as in the DALI graph."""
    red, green, blue = image.to(torch.float32).div_(255)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    divisor = chroma + (chroma == 0)
    is_red, is_green = value == red, value == green
    sixths = torch.where(is_green, (blue - red).div_(divisor).add_(2), (red - green).div_(divisor).add_(4))
    sixths = torch.where(is_red, (green - blue).div_(divisor), sixths).add_(6 + 6 * share)
    out = torch.empty_like(image)
    for channel, offset in zip(out, (5.0, 3.0, 1.0), strict=True):
        place = sixths + offset
        place.sub_((place / 6).floor_(), alpha=6)
        place = torch.minimum(place, 4 - place).clamp_(0, 1)
        channel.copy_((value - place.mul_(chroma)).mul_(255.999))  # torchvision scales back by this, and truncates
    return out


def _equalize(image: torch.Tensor) -> torch.Tensor:
    """Each channel's histogram flattened as OpenCV's equalizeHist and DALI do it.

    Pillow and torchvision round the width of a step down to a whole number of pixels, and so never use the whole range.
    """
    pixels = image[0].numel()
    out = torch.empty_like(image)
    for channel, flat in enumerate(image):
        count = torch.bincount(flat.flatten(), minlength=256)
        below = count.cumsum(0)
        darkest = below[(count > 0).byte().argmax()]
        scale = 255 / (pixels - darkest).clamp(min=1).float()
        table = ((below - darkest).clamp(min=0).float() * scale).round().byte()
        found = table.index_select(0, flat.flatten().int()).view_as(flat)  # in a quarter of the time of table[flat]
        out[channel] = torch.where(darkest == pixels, flat, found)
    return out
