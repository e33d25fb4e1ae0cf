"""The augmentation operations with torchvision's functions, one image at a time, on the CPU or a GPU."""

import math

import torch
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from dali_pipes.plan.augment.operations import OPS, Codes, Numbers, Slot


def augment(image: torch.Tensor, slots: tuple[Slot, ...], ops: Codes, magnitudes: Numbers) -> torch.Tensor:
    """(3, H, W) uint8, after one operation from each slot."""
    for slot, code, magnitude in zip(slots, ops.tolist(), magnitudes.tolist(), strict=True):
        image = _apply(image, OPS[code], magnitude, slot)
    return image


def _apply(image: torch.Tensor, op: str, magnitude: float, slot: Slot) -> torch.Tensor:
    match op:
        case "Identity":
            return image
        case "ShearX" | "ShearY":
            degrees = math.degrees(math.atan(magnitude))
            return _affine(image, slot, shear=[degrees, 0.0] if op == "ShearX" else [0.0, degrees], center=[0, 0])
        case "TranslateX" | "TranslateY":
            return _affine(image, slot, translate=[int(magnitude), 0] if op == "TranslateX" else [0, int(magnitude)])
        case "Rotate":
            return F.rotate(image, magnitude, InterpolationMode(slot.interpolation))
        case "Brightness":
            return F.adjust_brightness(image, 1 + magnitude)
        case "Color":
            return F.adjust_saturation(image, 1 + magnitude)
        case "Contrast":
            return F.adjust_contrast(image, 1 + magnitude)
        case "Sharpness":
            return F.adjust_sharpness(image, 1 + magnitude)
        case "Posterize":
            return F.posterize(image, int(magnitude))
        case "Solarize":
            return F.solarize(image, 255 * magnitude)
        case "AutoContrast":
            return F.autocontrast(image)
        case "Equalize":
            return _equalize(image)
        case "Invert":
            return F.invert(image)
        case "Hue":
            return F.adjust_hue(image, magnitude)
        case "GaussianBlur":
            return F.gaussian_blur(image, [slot.kernel_size] * 2, [magnitude] * 2)
    raise ValueError(op)


def _affine(image: torch.Tensor, slot: Slot, **options: list[float]) -> torch.Tensor:
    still = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    return F.affine(image, **still | options, interpolation=InterpolationMode(slot.interpolation))


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
        out[channel] = torch.where(darkest == pixels, flat, table[flat.int()])
    return out
