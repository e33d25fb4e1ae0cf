"""Carries out the steps of a plan on a whole image, with Pillow.

Pillow does what torchvision does with a PIL image: for the same draw the pixels are equal, on every
backend that decodes on the CPU.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from dali_pipes.plan.whole.base import DrawnStep

_METHODS = {"affine": Image.Transform.AFFINE, "perspective": Image.Transform.PERSPECTIVE}
_NUMBERS = {"affine": 6, "perspective": 8}  # that Pillow takes


def change(image: Image.Image, steps: Sequence[DrawnStep]) -> Image.Image:
    """An image in RGB after the steps, each of a single image, that happen to it."""
    for step in steps:
        if not step.happens:
            continue
        height, width = step.size.tolist()
        resample = Image.Resampling[step.interpolation.upper()]
        if step.kind == "resize":
            image = image.resize((width, height), resample)
        else:
            numbers = step.numbers[: _NUMBERS[step.kind]].tolist()
            method = _METHODS[step.kind]
            image = image.transform((width, height), method, numbers, resample, fillcolor=0)
    return image


def change_array(pixels: torch.Tensor, steps: Sequence[DrawnStep]) -> torch.Tensor:
    """`change` for (height, width, 3) uint8."""
    if not any(step.happens for step in steps):
        return pixels
    # a copy: PyTorch warns of arrays that cannot be written
    changed = np.array(change(Image.fromarray(pixels.numpy()), steps))
    return torch.from_numpy(changed)
