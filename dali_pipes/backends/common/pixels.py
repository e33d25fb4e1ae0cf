"""Normalization, erasing, cast and memory format, for backends whose images arrive as uint8.

`Normalizer` finishes whole batches on any device, `finish_into` one image on the CPU. The
arithmetic is that of the DALI graph.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.common.functions import Functions
from dali_pipes.plan.augment.operations import FILLS, Codes, Numbers, Slot
from dali_pipes.plan.geometry import Geometry, Pair
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


class Normalizer:
    """Turns (N, C, H, W) uint8 images into finished ones, on the device they are on."""

    def __init__(self, transform: Transform):
        self._transform, self._functions = transform, Functions(transform)
        self._dtype, self._memory_format = (
            TORCH_DTYPES[transform.dtype],
            MEMORY_FORMATS[transform.memory_format],
        )
        self._constants: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(
        self,
        images: torch.Tensor,
        erased: torch.Tensor,
        numbers: NDArray[np.float64] | None = None,
    ) -> torch.Tensor:
        """The finished images.

        Args:
            erased: as `Augmentation.erased`, on the CPU.
            numbers: what the functions of the user's take; None: they have run already.
        """
        if numbers is None:
            finished = self._normalize(images)
        else:
            images = self._functions.run("uint8", images, numbers)
            finished = self._functions.run("normalized", self._normalize(images), numbers)
            finished = finished.contiguous(memory_format=self._memory_format)
        erase(finished, erased)
        return finished

    def _normalize(self, images: torch.Tensor) -> torch.Tensor:
        if self._dtype == torch.uint8:
            return images.contiguous(memory_format=self._memory_format)

        form = images.device, images.shape[3]
        # copied to the device once: each further copy would wait for all copies before it
        if form not in self._constants:
            mean, scale = normalization(self._transform, images.shape[3])
            self._constants[form] = mean.to(images.device), scale.to(images.device)

        finished = torch.empty(
            images.shape, dtype=self._dtype, device=images.device, memory_format=self._memory_format
        )

        # one image at a time on the CPU: it stays in the cache, which takes a third of the time of
        # a whole batch
        parts = [(finished, images)] if images.is_cuda else zip(finished, images, strict=True)
        for out, pixels in parts:
            normalize_into(out, pixels, *self._constants[form])
        return finished


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


def finish_into(
    out: torch.Tensor,
    image: torch.Tensor,
    slots: tuple[Slot, ...],
    ops: Codes,
    magnitudes: Numbers,
    functions: Functions,
    numbers: NDArray[np.float64],
    constants: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Writes one image of (C, H, W) uint8 into `out`, augmented and normalized."""
    if slots:
        # torchvision takes longer to import than PyTorch
        from dali_pipes.backends.common.torchvision_augment import augment

        image = augment(image, slots, ops, magnitudes)
    if not functions:
        normalize_into(out, image, *constants)
        return

    # a copy: a function may write into it, and its memory may be the decoder's
    image = image.clone(memory_format=torch.contiguous_format)
    (image,) = functions.run("uint8", image[None], numbers[None])
    normalize_into(out, image, *constants)
    (finished,) = functions.run("normalized", out[None], numbers[None])
    out.copy_(finished)


def erase(images: torch.Tensor, erased: torch.Tensor) -> None:
    """Sets regions to zero, or fills them with noise.

    Args:
        erased: as `Augmentation.erased`, on the CPU. A height of 0 means that nothing is erased.
    """
    if erased.ndim == 3:
        for image, regions in zip(images, erased.tolist(), strict=True):
            _fill_regions(image, regions)
        return

    for place in erased[:, 2].nonzero().flatten().tolist():
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
        part.copy_(torch.randn(shape, generator=generator, **_FLOAT))


def join_erased(views: list[NDArray[np.int64]]) -> torch.Tensor:
    """The regions of several views of images, one after the other."""
    if len({each.shape[1:] for each in views}) > 1:
        views = [_as_regions(each, max(map(np.ndim, views))) for each in views]
        most = max(each.shape[1] for each in views)
        views = [np.pad(each, ((0, 0), (0, most - each.shape[1]), (0, 0))) for each in views]
    return torch.from_numpy(np.concatenate(views))


def _as_regions(erased: NDArray[np.int64], ndim: int) -> NDArray[np.int64]:
    return np.pad(erased, ((0, 0), (0, 2)))[:, None] if erased.ndim < ndim else erased


def to_steps(images: torch.Tensor, transform: Transform) -> torch.Tensor:
    """The pixels as float32 from 0 to 255: undoes the normalization."""
    if transform.dtype == "uint8":
        return images.float()
    mean, std = (
        torch.tensor(value, **_FLOAT).mul(255).reshape(-1, 1, 1)
        for value in (transform.mean, transform.std)
    )
    return images.float() * std + mean


def crop_and_flip(pixels: np.ndarray, planned: Geometry, shape: Pair) -> np.ndarray:
    """The output, (*shape, C), of a resized image, (H, W, C); areas outside the image are black."""
    (top, left), (height, width) = (int(number) for number in planned.crop), shape
    before = max(0, -top), max(0, -left)
    after = max(0, top + height - pixels.shape[0]), max(0, left + width - pixels.shape[1])

    if any(before) or any(after):
        pixels = np.pad(pixels, ((before[0], after[0]), (before[1], after[1]), (0, 0)))
        top, left = top + before[0], left + before[1]

    # a view with negative strides where it flips, which torch.from_numpy refuses
    pixels = pixels[top : top + height, left : left + width]
    return pixels[:: -1 if planned.vertical_flip else 1, :: -1 if planned.flip else 1]
