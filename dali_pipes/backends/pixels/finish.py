"""Finishes images: from decoded pixels to what the model gets, the same for every backend.

    decoded pixels → placed: resized, cropped, flipped → finished: operations, functions of the
    user's, normalization, erased rectangles

`write_views` does all of it for one image on the CPU. `View.finish` does the second half for a
batch on any device, after a backend that places images itself, as DALI's graph does on a GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from dali_pipes.backends.backend import Decoded
from dali_pipes.backends.pixels.functions import Functions
from dali_pipes.backends.pixels.gray import as_tensor, from_array, gray_of
from dali_pipes.backends.pixels.operations import augment
from dali_pipes.backends.pixels.plain_resize import resize_plain
from dali_pipes.backends.pixels.tensors import (
    MEMORY_FORMATS,
    TORCH_DTYPES,
    erase,
    normalization,
    normalize_into,
)
from dali_pipes.backends.pixels.whole import change_array
from dali_pipes.backends.transfer import copy_to
from dali_pipes.plan.geometry import Pair
from dali_pipes.plan.plan import PlannedBatch, PlannedView
from dali_pipes.plan.steps.lists import WholeSteps
from dali_pipes.plan.steps.operations import CODE, Augmentation
from dali_pipes.plan.steps.whole import DrawnStep
from dali_pipes.plan.transforms import INTERPOLATIONS, Transform
from dali_pipes.plan.transforms.base import RANDOM

_TOP_LEFT = np.zeros(2, np.int64)
# pixels of a side: a smaller image may have only pixels that PyTorch, whose weights have 16 bits,
# rounds in another way than Pillow, whose weights have 22
_SMALL = 16


class Pixels(Protocol):
    """The decoded pixels of one image, in the form of whatever library decoded them."""

    def change(self, drawn: Sequence[DrawnStep], steps: WholeSteps) -> Self:
        """The same after the steps on the whole image."""

    def resize(
        self, part: list[int], size: Pair, interpolation: str, antialias: bool
    ) -> torch.Tensor:
        """(1, C, *size) of a part of them: its top, left, height and width. Without `antialias`
        the interpolation is bilinear.
        """


class DecodedTensor:
    """(H, W, C) uint8 pixels, which PyTorch resizes; in colors that are made gray if `channels` is
    1, and then only those that are needed. Nothing writes into them.

    PyTorch resizes uint8 images in memory format channels_last with vector instructions, as Pillow
    does and within one step of its result
    (aten/src/ATen/native/cpu/UpSampleKernelAVXAntialias.h, made after Pillow-SIMD).
    """

    def __init__(self, pixels: torch.Tensor, channels: int):
        self._pixels, self._channels = pixels, channels

    def change(self, drawn: Sequence[DrawnStep], steps: WholeSteps) -> "DecodedTensor":
        changed = change_array(self._in_channels(self._pixels), drawn, steps)
        return DecodedTensor(changed, self._channels)

    def resize(
        self, part: list[int], size: Pair, interpolation: str, antialias: bool
    ) -> torch.Tensor:
        top, left, height, width = part
        pixels = self._pixels
        if (height, width) != pixels.shape[:2]:
            pixels = pixels[top : top + height, left : left + width]
        pixels = self._in_channels(pixels)
        if (height, width) == size:
            return as_one(pixels)
        if not antialias:
            return as_one(torch.from_numpy(resize_plain(pixels.numpy(), size)))

        smooth = interpolation != "nearest-exact"
        if smooth and min(size) < _SMALL:
            resample = Image.Resampling[interpolation.upper()]
            return as_one(as_tensor(from_array(pixels.numpy()).resize(size[::-1], resample)))
        return F.interpolate(as_one(pixels), size, mode=interpolation, antialias=smooth)

    def _in_channels(self, pixels: torch.Tensor) -> torch.Tensor:
        return gray_of(pixels) if pixels.shape[2] > self._channels else pixels


class View:
    """Makes one view of images.

    Args:
        transform: one of `views_of`.
        only_bytes: `write` leaves the rest to `normalize`, which runs where the batch arrives.
    """

    def __init__(self, transform: Transform, only_bytes: bool = False):
        self._transform, self._functions = transform, Functions(transform)
        self._steps: WholeSteps = getattr(transform, "before", [])
        self._slots, self._erases = transform.augmenter.slots, transform.augmenter.erases
        self._only_bytes = only_bytes
        self._dtype = TORCH_DTYPES[transform.dtype]
        self._layout = MEMORY_FORMATS[transform.memory_format]
        self._constants: dict[tuple[torch.device, int], tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def shares_resize(self) -> bool:
        """Whether all views of an image are crops of one resized image."""
        return self._transform.shares_resize

    def empty(self, count: int, shape: Pair) -> torch.Tensor:
        """(count, C, *shape) on the CPU for `write`, not initialized."""
        return self._empty((count, self._transform.channels, *shape), torch.device("cpu"))

    def resize(
        self, pixels: Pixels, planned: PlannedView, at: int, origin: NDArray[np.int64] = _TOP_LEFT
    ) -> torch.Tensor:
        """(1, C, h, w): the resized region of image `at`.

        Args:
            origin: the top left corner of the decoded pixels in the image.
        """
        if self._steps:
            pixels = pixels.change([step.take(at) for step in planned.before], self._steps)

        geometry, drawn = planned.geometry, planned.interpolations
        top, left, height, width = geometry.region[at].tolist()
        part = [top - int(origin[0]), left - int(origin[1]), height, width]
        kind = self._transform.interpolation if drawn is None else INTERPOLATIONS[drawn[at]]
        rows, columns = geometry.resize[at].tolist()
        return pixels.resize(part, (rows, columns), kind, self._antialiases(kind))

    def _antialiases(self, interpolation: str) -> bool:
        return self._transform.antialias or interpolation != "bilinear"

    def run_every_operator(self) -> None:
        """Finishes a black image by every operation that may occur, before threads do it at once.

        PyTorch looks an operator up in its first call and keeps what it finds, behind a lock of
        C++ (`static` in the functions of at::_ops). A process that another thread forks at that
        moment would wait forever when it calls the operator itself.
        """
        transform = self._transform
        shape = transform.largest_shape
        height, width = (max(side, _SMALL) for side in shape)  # which PyTorch resizes
        form = (height + 3, width + 2, transform.channels)
        black = torch.zeros(form, dtype=torch.uint8, device="cpu")[1:]
        is_random = transform.interpolation == RANDOM
        for kind in INTERPOLATIONS[:2] if is_random else [transform.interpolation]:
            part = [0, 0, height + 2, width + 2]
            image = DecodedTensor(black, transform.channels)
            image.resize(part, (height, width), kind, self._antialiases(kind))
        images = crop_and_flip(as_one(black), [-1, -1], shape, (True, True))

        tables = np.zeros((2, 3, 256), np.uint8)
        for at in range(max((len(slot.ops) for slot in self._slots), default=0)):
            ops = np.array([[CODE[slot.ops[at % len(slot.ops)]] for slot in self._slots]], np.int8)
            augment(images, self._slots, ops, np.ones(ops.shape, np.float32), tables)
        out = self._empty(images.shape, images.device)
        self._normalize_into(out, images)
        erase(out, np.array([[0, 0, 1, 1]]))

    def write(
        self, resized: torch.Tensor, planned: PlannedView, at: int, out: torch.Tensor
    ) -> None:
        """Crops, flips and finishes image `at`, (1, C, h, w), into `out`, (1, C, H, W)."""
        geometry = planned.geometry
        flips = bool(geometry.flip[at]), bool(geometry.vertical_flip[at])
        image = crop_and_flip(resized, geometry.crop[at].tolist(), planned.shape, flips)
        if not (self._slots or self._functions or self._erases):
            self._normalize_into(out, image)
            return

        drawn = planned.augmentation.take(slice(at, at + 1))
        image = self.operate(image, drawn)
        if self._only_bytes:
            out.copy_(image)
        else:
            self.normalize(image, drawn, out)

    def finish(self, images: torch.Tensor, drawn: Augmentation) -> torch.Tensor:
        """(N, C, H, W) uint8 that are placed, finished on the device they are on."""
        return self.normalize(self.operate(images, drawn), drawn)

    def operate(self, images: torch.Tensor, drawn: Augmentation) -> torch.Tensor:
        """(N, C, H, W) uint8 after the operations, and the functions of uint8 images."""
        if self._slots:
            images = augment(images, self._slots, drawn.ops, drawn.magnitudes, drawn.tables)
        if self._functions:
            # a copy: a function may write into it, and its memory may be the decoder's
            copy = images.clone(memory_format=torch.contiguous_format)
            images = self._functions.run("uint8", copy, drawn.numbers)
        return images

    def normalize(
        self, images: torch.Tensor, drawn: Augmentation, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(N, C, H, W) uint8 normalized, and what follows: functions of normalized images, and
        erased rectangles.

        Args:
            out: for the result; None: new memory, or that of `images` where that will do.
        """
        if out is None and self._dtype == torch.uint8:
            out = images.contiguous(memory_format=self._layout)
        else:
            if out is None:
                out = self._empty(images.shape, images.device)
            self._normalize_into(out, images)

        if self._functions:
            finished = self._functions.run("normalized", out, drawn.numbers)
            if finished is not out:
                out.copy_(finished)
        if self._erases:
            erase(out, drawn.erased)
        return out

    def _empty(self, form: Sequence[int], device: torch.device) -> torch.Tensor:
        return torch.empty(form, dtype=self._dtype, device=device, memory_format=self._layout)

    def _normalize_into(self, out: torch.Tensor, images: torch.Tensor) -> None:
        """Writes uint8 images into `out`."""
        form = out.device, out.shape[-1]
        if form not in self._constants:
            mean, scale = normalization(self._transform, out.shape[-1])
            self._constants[form] = copy_to(out.device, mean), copy_to(out.device, scale)

        # one image at a time on the CPU: it stays in the cache, which takes a third of the time of
        # a whole batch
        at_once = len(out) == 1 or out.is_cuda
        for each, pixels in [(out, images)] if at_once else zip(out, images, strict=True):
            normalize_into(each, pixels, *self._constants[form])


def write_views(
    pixels: Pixels,
    views: list[View],
    planned: PlannedBatch,
    at: int,
    outs: list[tuple[torch.Tensor, ...]],
    origin: NDArray[np.int64] = _TOP_LEFT,
) -> None:
    """Writes each view of image `at` of a batch, which is decoded once.

    Args:
        outs: for each view the N images that are written, (1, C, H, W): `split(1)` of a batch.
        origin: as for `View.resize`.
    """
    for number, (view, drawn, out) in enumerate(zip(views, planned.views, outs, strict=True)):
        if not number or not view.shares_resize:
            resized = view.resize(pixels, drawn, at, origin)
        view.write(resized, drawn, at, out[at])


def change_views(
    batch: Decoded,
    views: list[View],
    change: Callable[[View, torch.Tensor, Augmentation], torch.Tensor],
) -> Decoded:
    """A batch of placed uint8 images, each view of which is changed on its device by
    `View.finish` or `View.normalize`.
    """
    groups, each = [], iter(views)
    for images, group in zip(batch.groups, batch.planned.groups, strict=True):
        parts = zip(torch.split(images, len(batch)), group, strict=True)
        made = [change(next(each), part, drawn.augmentation) for part, drawn in parts]
        groups.append(torch.cat(made) if len(made) > 1 else made[0])
    return replace(batch, groups=tuple(groups))


def as_one(pixels: torch.Tensor) -> torch.Tensor:
    """(H, W, C) as a batch of one, (1, C, H, W), that is channels_last; a view where it can be.

    A call of PyTorch lets go of the interpreter lock, which another thread then takes, so there is
    one call here and not two.
    """
    height, width, channels = pixels.shape
    strides = (height * width * channels, 1, width * channels, channels)
    return pixels.contiguous().as_strided((1, channels, height, width), strides)


def crop_and_flip(
    image: torch.Tensor, crop: list[int], shape: Pair, flips: tuple[bool, bool]
) -> torch.Tensor:
    """(1, C, *shape) of (1, C, h, w); what is outside the image is black.

    Args:
        crop: top and left of the result in the image.
        flips: left to right, top to bottom.
    """
    (height, width), (top, left) = image.shape[2:], crop
    if top >= height or left >= width or top <= -shape[0] or left <= -shape[1]:
        # nothing of it is visible; F.pad takes away no more than there is
        image = image.new_zeros((1, image.shape[1], *shape))
    elif (height, width, top, left) != (*shape, 0, 0):
        image = F.pad(image, [-left, left + shape[1] - width, -top, top + shape[0] - height])

    axes = [axis for axis, is_flipped in zip((3, 2), flips, strict=True) if is_flipped]
    return image.flip(axes) if axes else image
