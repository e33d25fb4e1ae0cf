"""Dtypes, memory formats, normalization and erasing of images. The arithmetic is that of the DALI
graph.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.transfer import copy_to
from dali_pipes.plan.geometry import Pair
from dali_pipes.plan.steps.operations import FILLS
from dali_pipes.plan.transforms import DTYPES, Transform, views_of

TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, dtype) for name, dtype in DTYPES.items()
}
DTYPE_BYTES = {name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()}
MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
_FLOAT: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}


def pixels_of(transform: Transform, batch_size: int) -> tuple[str, int]:
    """A batch of the largest images: its description for messages, and its number of values."""
    shapes = [view.largest_shape for view in views_of(transform)]
    (height, width), more = (
        shapes[0],
        f" and {len(shapes) - 1} more views" if len(shapes) > 1 else "",
    )
    values = batch_size * transform.channels * sum(map(prod, shapes))
    return f"of {batch_size} × {height} × {width} pixels{more}", values


def empty_images(
    count: int,
    channels: int,
    shape: Pair,
    dtype: torch.dtype,
    memory_format: str,
    memory: Callable[[int], torch.Tensor],
) -> torch.Tensor:
    """(count, channels, *shape) images that are not initialized, in `memory(bytes)`: (bytes,)
    uint8.
    """
    last = memory_format == "channels_last"
    form = (count, *shape, channels) if last else (count, channels, *shape)
    images = memory(prod(form) * dtype.itemsize).view(dtype).view(form)
    return images.permute(0, 3, 1, 2) if last else images


def normalization(transform: Transform, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What is subtracted from pixels of 0 to 255, and by what the difference is multiplied.

    Both broadcast with (C, H, width), in which C is `transform.channels`.
    """
    mean, std = (
        torch.tensor(values, **_FLOAT).mul(255).reshape(1, -1, 1, 1)
        for values in (transform.mean, transform.std)
    )

    scale = std.reciprocal()

    # constants for whole rows in the layout of the images: broadcasting three values at a time
    # takes five times as long
    if transform.memory_format == "channels_last":
        mean, scale = (
            values.expand(1, -1, 1, width).contiguous(memory_format=torch.channels_last)
            for values in (mean, scale)
        )

    return mean[0], scale[0]


def normalize_into(
    out: torch.Tensor, pixels: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Writes uint8 pixels into `out`, normalized as float32 and cast to its dtype.

    If `out` is uint8, the pixels are copied as they are.
    """
    if out.dtype == torch.uint8:
        return out.copy_(pixels)
    if out.dtype == torch.float32:
        return out.copy_(pixels).sub_(mean).mul_(scale)
    return out.copy_(pixels.to(torch.float32).sub_(mean).mul_(scale))


def erase(images: torch.Tensor, erased: NDArray[np.int64]) -> None:
    """Sets regions to zero, or fills them with noise.

    Args:
        erased: as `Augmentation.erased`. A height of 0 means that nothing is erased.
    """
    if erased.ndim == 3:
        for image, regions in zip(images, erased.tolist(), strict=True):
            _fill_regions(image, regions)
        return

    for place in erased[:, 2].nonzero()[0].tolist():
        top, left, height, width = erased[place].tolist()
        images[place, :, top : top + height, left : left + width] = 0


def _fill_regions(image: torch.Tensor, regions: list[list[int]]) -> None:
    for top, left, height, width, seed, fill in regions:
        if not height:
            continue
        part = image[:, top : top + height, left : left + width]
        if FILLS[fill] == "const":
            part.zero_()
            continue
        # made on the CPU for any device, so that all backends have the same noise
        shape = (len(image), height, width) if FILLS[fill] == "pixel" else (len(image), 1, 1)
        generator = torch.Generator("cpu").manual_seed(seed)
        part.copy_(copy_to(image.device, torch.randn(shape, generator=generator, **_FLOAT)))


def to_steps(images: torch.Tensor, transform: Transform) -> torch.Tensor:
    """The pixels as float32 from 0 to 255: undoes the normalization."""
    if transform.dtype == "uint8":
        return images.float()
    mean, std = (
        torch.tensor(value, **_FLOAT).mul(255).reshape(-1, 1, 1)
        for value in (transform.mean, transform.std)
    )
    return images.float() * std + mean
