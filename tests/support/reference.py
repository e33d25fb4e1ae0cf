"""What a planned batch holds, made by Pillow, torchvision and OpenCV alone.

Loaders are held to it. It reads the numbers of the plan and uses nothing of `dali_pipes.backends`,
so what the loaders share cannot hide here. The normalization and the form are what the test itself
says, and the defaults of mean and std are those that torchvision documents.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from later import Later
from PIL import Image, ImageOps

from dali_pipes.plan.steps.operations import FILLS, OPS, Slot

F, v2 = Later("torchvision.transforms.v2.functional"), Later("torchvision.transforms.v2")
cv2 = Later("cv2")

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
INTERPOLATIONS = ("bilinear", "bicubic", "nearest-exact")  # as a planned batch numbers them


def read(path: Path, upright: bool = False) -> Image.Image:
    """The picture in RGB, as it is stored; `upright`: turned as its EXIF says."""
    with Image.open(path) as image:
        if upright:
            return ImageOps.exif_transpose(image).convert("RGB")
        # Pillow turns each TIFF when it decodes it
        with patch.object(ImageOps, "exif_transpose"):
            return image.convert("RGB")


def read_batch(manifest: Any, planned: Any, upright: bool = False) -> list[Image.Image]:
    """The pictures of a planned batch, in its order."""
    return [read(manifest.path(sample), upright) for sample in planned.ids.tolist()]


@dataclass(frozen=True)
class Reference:
    """Carries out planned batches of a transform.

    Attributes:
        mean, std, dtype: as the test gave them to the transform. Images are float32 here, as
            "fp16" and "bf16" are before they are rounded, or uint8.
    """

    transform: Any
    mean: Sequence[float] = IMAGENET_MEAN
    std: Sequence[float] = IMAGENET_STD
    dtype: str = "fp32"

    @classmethod
    def of(cls, kind: Callable[..., Any], **options: Any) -> "Reference":
        """That of the transform with these options."""
        own = {name: options[name] for name in ("mean", "std", "dtype") if name in options}
        return cls(kind(**options), **own)

    def __call__(self, planned: Any, images: Sequence[Image.Image]) -> list[torch.Tensor]:
        """The images of each group of views, (V * N, C, H, W), one view after the other.

        Args:
            images: in RGB, as they are stored, or upright for exif=apply.
        """
        if self.transform.channels == 1:
            images = [image.convert("L") for image in images]
        return [
            torch.stack(
                [
                    self._make(view, transform, at, image)
                    for transform, view in zip(transforms, views, strict=True)
                    for at, image in enumerate(images)
                ]
            )
            for transforms, views in zip(self.transform.groups, planned.groups, strict=True)
        ]

    def steps(self, one: torch.Tensor, other: torch.Tensor) -> np.ndarray:
        """How far (…, C, H, W) images are from others, in steps of 255."""
        difference = (one.cpu().float() - other.cpu().float()).abs()
        if self.dtype != "uint8":
            difference *= 255 * torch.tensor(self.std).reshape(-1, 1, 1)
        return difference.numpy()

    def _make(self, view: Any, transform: Any, at: int, image: Image.Image) -> torch.Tensor:
        for step in view.before:
            image = change_whole(image, step.take(at))
        pixels = F.pil_to_tensor(place(image, view, transform, at))

        augmentation = view.augmentation
        assert not augmentation.numbers.size, "functions of the user's have no reference"
        drawn = zip(
            transform.augmenter.slots,
            augmentation.ops[at],
            augmentation.magnitudes[at].tolist(),
            strict=True,
        )
        for slot, code, magnitude in drawn:
            pixels = operate(pixels, OPS[code], magnitude, slot)

        if self.dtype != "uint8":
            pixels = F.to_dtype(pixels, torch.float32, scale=True)
            pixels = F.normalize(pixels, list(self.mean), list(self.std))
        return erase(pixels, augmentation.erased[at])


def change_whole(image: Image.Image, step: Any) -> Image.Image:
    """A step on the whole image, of which `step` has the drawn numbers of a single image."""
    if not step.happens:
        return image
    height, width = step.size.tolist()
    fill = step.fill[: len(image.getbands())]
    numbers = step.numbers.tolist()

    if step.kind == "pad":
        sides = [int(number) for number in numbers[:4]]
        return F.pad(image, sides, list(fill), step.padding_mode)
    if step.kind in ("resize", "plain_resize"):
        antialias = step.kind == "resize"
        return resize(image, (height, width), step.interpolation, antialias)
    method = Image.Transform[step.kind.upper()]
    count = {"AFFINE": 6, "PERSPECTIVE": 8}[method.name]
    resample = Image.Resampling[step.interpolation.upper()]
    color = fill if len(fill) > 1 else fill[0]
    return image.transform((width, height), method, numbers[:count], resample, fillcolor=color)


def place(image: Image.Image, view: Any, transform: Any, at: int) -> Image.Image:
    """The region, resized, the crop of that, black outside of it, and flipped."""
    geometry = view.geometry.take(at)
    kind = transform.interpolation
    if view.interpolations is not None:
        kind = INTERPOLATIONS[view.interpolations[at]]

    height, width = geometry.resize.tolist()
    image = F.crop(image, *geometry.region.tolist())
    if image.size != (width, height):
        image = resize(image, (height, width), kind, transform.antialias)

    image = F.crop(image, *geometry.crop.tolist(), *view.shape)
    image = F.horizontal_flip(image) if geometry.flip else image
    return F.vertical_flip(image) if geometry.vertical_flip else image


def resize(image: Image.Image, size: tuple[int, int], kind: str, antialias: bool) -> Image.Image:
    """By Pillow, or without antialiasing by OpenCV; NEAREST of Pillow is exact."""
    if antialias or kind.startswith("nearest"):
        return F.resize(image, list(size), v2.InterpolationMode(kind.removesuffix("-exact")))
    kernel = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}[kind]
    return Image.fromarray(cv2.resize(np.asarray(image), size[::-1], interpolation=kernel))


def operate(image: torch.Tensor, op: str, magnitude: float, slot: Slot) -> torch.Tensor:
    """An operation of `augment` on (C, H, W) uint8: torchvision's of tensors, timm's of a slot with
    a fill, OpenCV's Equalize, or torchvision's of a PIL image.
    """
    if op.startswith("OpenCv"):
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        changed = operate_as_albumentations(pixels, op, 1 + magnitude)
        return torch.from_numpy(changed.reshape(pixels.shape)).permute(2, 0, 1)
    if op == "PillowHue":
        return F.pil_to_tensor(F.adjust_hue(F.to_pil_image(image), magnitude))
    if slot.fill is not None or op.startswith("Pillow"):
        return F.pil_to_tensor(operate_as_timm(F.to_pil_image(image), op, magnitude, slot))
    if op == "Hue":
        return F.adjust_hue(image, magnitude)
    if op == "GaussianBlur":
        return F.gaussian_blur(image, [slot.kernel_size] * 2, [magnitude] * 2)
    if op == "Equalize":
        return torch.from_numpy(np.stack([cv2.equalizeHist(each) for each in image.numpy()]))
    if op == "EqualizeInSteps":
        return F.equalize(image)
    return v2.AutoAugment()._apply_image_or_video_transform(
        image, op, magnitude, interpolation=v2.InterpolationMode(slot.interpolation), fill={}
    )


def operate_as_albumentations(pixels: np.ndarray, op: str, factor: float) -> np.ndarray:
    """`adjust_saturation_torchvision` or `adjust_contrast_torchvision` of (H, W, C) uint8."""
    is_gray = pixels.shape[2] == 1
    gray = pixels[..., 0] if is_gray else cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    if op == "OpenCvColor":
        colored = cv2.cvtColor(gray, cv2.COLOR_GRAY2RGB)
        return pixels if is_gray else cv2.addWeighted(pixels, factor, colored, 1 - factor, 0)
    rest = float(gray.mean() * (1 - factor))
    values = np.arange(256, dtype=np.float32) * factor + rest
    return np.asarray(values.clip(0, 255).astype(np.uint8)[pixels])


@cache
def _functions_of_timm() -> Any:
    return import_module("timm.data.auto_augment")


def operate_as_timm(image: Image.Image, op: str, magnitude: float, slot: Slot) -> Image.Image:
    """timm's function for an operation of `augment`."""
    timm = _functions_of_timm()
    fill = slot.fill or (0, 0, 0)
    options = {
        "resample": Image.Resampling[slot.interpolation.upper()],
        "fillcolor": fill if image.mode == "RGB" else fill[0],
    }
    match op:
        case "Identity":
            return image
        case "ShearX" | "ShearY" | "Rotate":
            name = {"ShearX": "shear_x", "ShearY": "shear_y", "Rotate": "rotate"}[op]
            return getattr(timm, name)(image, magnitude, **options)
        case "ShiftX":
            return timm.translate_x_abs(image, -magnitude, **options)
        case "ShiftY":
            return timm.translate_y_abs(image, -magnitude, **options)
        case "Posterize":
            # 8 bits are all of them; 0 bits, for which timm fails with Pillow 13, are black
            return image.point(lambda value: value & ~(2 ** (8 - int(min(magnitude, 8))) - 1))
        case "Solarize":
            return timm.solarize(image, round(255 * magnitude + 0.5))
        case "SolarizeAdd":
            return timm.solarize_add(image, int(magnitude))
        case "Color" | "Contrast" | "Brightness" | "Sharpness":
            return getattr(timm, op.lower())(image, 1 + magnitude)
        case "PillowColor" | "PillowContrast":
            return getattr(timm, op.removeprefix("Pillow").lower())(image, 1 + magnitude)
        case "AutoContrast" | "Invert":
            return getattr(timm, {"AutoContrast": "auto_contrast", "Invert": "invert"}[op])(image)
        case "EqualizeInSteps":
            return timm.equalize(image)
    raise ValueError(op)


def erase(image: torch.Tensor, regions: np.ndarray) -> torch.Tensor:
    """torchvision's erase of (C, H, W): with zeros, or with normally distributed noise of the
    planned seed, one color or one for each pixel.
    """
    for top, left, height, width, *noise in np.atleast_2d(regions).tolist():
        if not height:
            continue
        value = torch.zeros(len(image), 1, 1)
        if noise and FILLS[noise[1]] != "const":
            sides = (height, width) if FILLS[noise[1]] == "pixel" else (1, 1)
            value = torch.randn(
                (len(image), *sides), generator=torch.Generator().manual_seed(noise[0])
            )
        image = F.erase(image, top, left, height, width, value)
    return image
