"""Carries out the steps of a plan on a whole image, with Pillow.

Pillow does what torchvision does with a PIL image: for the same draw the pixels are equal, on every
backend that decodes on the CPU. Functions of the user's are called by `call_on_whole`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from dali_pipes.backends.pixels.functions import call_on_whole
from dali_pipes.backends.pixels.gray import as_array, as_tensor, from_array
from dali_pipes.backends.pixels.plain_resize import resize_plain
from dali_pipes.plan.steps.lists import WholeSteps
from dali_pipes.plan.steps.whole import DrawnStep

# Pillow's method for each kind of warp, and how many numbers it takes
WARPS = {"affine": (Image.Transform.AFFINE, 6), "perspective": (Image.Transform.PERSPECTIVE, 8)}


def change(image: Image.Image, drawn: Sequence[DrawnStep], steps: WholeSteps) -> Image.Image:
    """An image in RGB or L after the steps that happen to it.

    Args:
        drawn: of a single image.
        steps: the transform's `before`, of which they are drawn.
    """
    for one, step in zip(drawn, steps, strict=True):
        if one.happens:
            image = _change_once(image, one, step)
    return image


def _change_once(image: Image.Image, drawn: DrawnStep, step: Any) -> Image.Image:
    height, width = drawn.size.tolist()
    if drawn.kind == "function":
        return call_on_whole(step, image, drawn.numbers)
    if drawn.kind == "plain_resize":
        cubic = drawn.interpolation == "bicubic"
        return from_array(resize_plain(as_array(image), (height, width), cubic))

    resample = Image.Resampling[drawn.interpolation.upper()]
    if drawn.kind == "resize":
        return image.resize((width, height), resample)
    if drawn.kind == "pad":
        return _pad(image, drawn)
    method, count = WARPS[drawn.kind]
    numbers = drawn.numbers[:count].tolist()
    fill = _color(drawn, image)
    return image.transform((width, height), method, numbers, resample, fillcolor=fill)


def _color(drawn: DrawnStep, image: Image.Image) -> int | tuple[int, ...]:
    """What comes from outside the image: in L one of its three equal numbers."""
    return drawn.fill if image.mode == "RGB" else drawn.fill[0]


def _pad(image: Image.Image, drawn: DrawnStep) -> Image.Image:
    left, top, right, bottom = drawn.numbers[:4].astype(int).tolist()
    if drawn.padding_mode == "constant":
        size = drawn.size[1], drawn.size[0]
        padded = Image.new(image.mode, size, _color(drawn, image))
        padded.paste(image, (left, top))
        return padded
    around = ((top, bottom), (left, right), (0, 0))
    mode: Any = drawn.padding_mode
    return from_array(np.pad(as_array(image), around, mode))


def change_array(
    pixels: torch.Tensor, drawn: Sequence[DrawnStep], steps: WholeSteps
) -> torch.Tensor:
    """`change` for (height, width, channels) uint8."""
    if not any(one.happens for one in drawn):
        return pixels
    return as_tensor(change(from_array(pixels.numpy()), drawn, steps))
