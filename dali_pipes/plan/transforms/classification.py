"""The transforms of image classifiers: a crop of a random part or of the middle, with flips."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_ordered_pair, check_pixels
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import OptionError
from dali_pipes.options import option
from dali_pipes.plan.draws import CROP_DRAW, CROP_TRIES, FLIP_DRAW, SHIFT_DRAW, Draws
from dali_pipes.plan.geometry import Geometry, Int, center_crop, crop_geometry, resize_sizes
from dali_pipes.plan.steps.lists import smallest_sizes
from dali_pipes.plan.steps.whole import WholeResize, four_sides
from dali_pipes.plan.transforms.base import (
    RandomTransform,
    Transform,
    check_resize,
    check_size,
    describe_small,
    shape_of,
)


def is_too_small(resize: Any, shape: tuple[int, int]) -> bool:
    """Whether every image that is resized so is smaller than the crop.

    Args:
        resize: length of the shorter side, or (height, width); None: as stored.
        shape: height and width of the crop.
    """
    if resize is None:
        return False
    # of one number the other side may be of any length
    if isinstance(resize, int):
        return resize < min(shape)
    return any(side < needed for side, needed in zip(resize, shape, strict=True))


def refuse_larger_crop(transform: Transform, resize: Any, shape: tuple[int, int]) -> None:
    """Raises OptionError if there is nothing to crop; the arguments are those of `is_too_small`."""
    if is_too_small(resize, shape):
        size = shape[0] if shape[0] == shape[1] else shape
        raise OptionError(
            type(transform),
            f"resize is {resize}, less than the size of {size}, so there is nothing to crop; set "
            "resize to the size or more, or pad_if_needed",
        )


@dataclass(kw_only=True, slots=True)
class CenterCropTransform(RandomTransform):
    """torchvision's Resize(resize) and CenterCrop(size) as `EvalTransform`, with random flips.

    Attributes:
        resize: length of the shorter side before the crop, or (height, width), in pixels; None: as
            stored.
        pad_if_needed: whether a crop that is larger than every resized image is meant, with black
            around it; otherwise it is refused.
        flip_before_crop: the flips come before the crop. Where an odd number of pixels is cropped
            away, that moves a flipped image by one pixel.
    """

    resize: Any = option(256, check_resize)
    pad_if_needed: bool = False
    flip_before_crop: bool = False

    def __post_init__(self) -> None:
        RandomTransform.__post_init__(self)
        if not self.pad_if_needed:
            refuse_larger_crop(self, self.resize, self.shape)

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        flips = self.flips(draws.uniform(FLIP_DRAW)[:2])
        return center_crop(source, self.resize, self.shape, flips, self.flip_before_crop)


@dataclass(kw_only=True, slots=True)
class EvalTransform(Transform):
    """The shorter side resized, then a central crop: torchvision's Resize(resize) and
    CenterCrop(size).

    Resize((h, w)) without a crop is size=(h, w) and resize=(h, w). What the crop has outside the
    image is black.

    Attributes:
        resize: length of the shorter side before the crop, or (height, width), in pixels; None: as
            stored.
        pad_if_needed: whether a crop that is larger than every resized image is meant; otherwise it
            is refused.
    """

    resize: Any = option(256, check_resize)
    pad_if_needed: bool = False

    def __post_init__(self) -> None:
        Transform.__post_init__(self)
        if not self.pad_if_needed:
            refuse_larger_crop(self, self.resize, self.shape)

    training: ClassVar[bool] = False

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        return center_crop(source, self.resize, self.shape, np.zeros((2, len(source)), bool))


@dataclass(kw_only=True, slots=True)
class TrainTransform(RandomTransform):
    """A random resized crop and a random flip, distributed as torchvision's RandomResizedCrop and
    RandomHorizontalFlip.

    The first of ten attempts that fits counts. If none fits, the region is the largest central one
    whose aspect ratio is allowed.

    Attributes:
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest width / height of the crop.
    """

    scale: tuple[float, float] = option((0.08, 1.0), check_ordered_pair)
    ratio: tuple[float, float] = option((3 / 4, 4 / 3), check_ordered_pair)

    crops: ClassVar[bool] = False

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        region, numbers = draw_regions(source, self.scale, self.ratio, draws)
        to = np.full((len(source), 2), self.shape)
        return Geometry(source, region, to, np.zeros_like(to), *self.flips(numbers))


def draw_regions(
    source: Int, scale: tuple[float, float], ratio: tuple[float, float], draws: Draws
) -> tuple[Int, NDArray[np.float64]]:
    """(N, 4) regions of random area and aspect ratio, and (2, N) random numbers for flips.

    As in torchvision, the first of ten attempts that fits counts; if none fits, it is the largest
    central region with an allowed aspect ratio.

    Args:
        source: (N, 2) heights and widths.
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest width / height.
    """
    # the first attempt mostly fits, so the other nine are drawn only for images where it does not
    flips_and_first_try = draws.uniform([FLIP_DRAW, CROP_DRAW])
    region, fits = _first_fit(flips_and_first_try[..., 1:], source, scale, ratio)

    missed = np.flatnonzero(~fits)
    if len(missed):
        tries = draws.uniform(np.arange(CROP_DRAW + 1, CROP_DRAW + CROP_TRIES), missed)
        region[missed], fits = _first_fit(tries, source[missed], scale, ratio)

        never = missed[~fits]
        if len(never):
            region[never] = _central_region(source[never], ratio)

    return region, flips_and_first_try[:2, :, 0]


def _first_fit(
    numbers: NDArray[np.float64],
    source: Int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[Int, NDArray[np.bool_]]:
    """The region of the first attempt that fits into its image, and whether there is one.

    `numbers` are (4, N, attempts) random numbers.
    """
    area, aspect, top, left = numbers
    height, width = source[:, :1], source[:, 1:]
    area = (scale[0] + (scale[1] - scale[0]) * area) * (height * width)
    # as in torchvision, the logarithm of the aspect ratio is uniform
    low, high = np.log(ratio)
    aspect = np.exp(low + (high - low) * aspect)

    w, h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)

    # argmax of booleans is the first attempt that fits, or 0 if none does; fits[at] tells which
    at = np.arange(len(fits)), fits.argmax(axis=1)
    h, w = h[at], w[at]
    region = np.empty((len(fits), 4), np.int64)
    region[:, 0] = top[at] * (source[:, 0] - h + 1)
    region[:, 1] = left[at] * (source[:, 1] - w + 1)
    region[:, 2], region[:, 3] = h, w

    return region, fits[at]


def _central_region(source: Int, ratio: tuple[float, float]) -> Int:
    """The largest central region whose aspect ratio is within `ratio`."""
    height, width = source[:, 0], source[:, 1]
    aspect = width / height
    h = np.where(aspect < ratio[0], np.rint(width / ratio[0]), height).astype(np.int64)
    w = np.where(aspect > ratio[1], np.rint(height * ratio[1]), width).astype(np.int64)
    return np.stack([(height - h) // 2, (width - w) // 2, h, w], axis=1)


@dataclass(kw_only=True, slots=True)
class RandomCropTransform(RandomTransform):
    """torchvision's Resize(resize), if any, RandomCrop(size, padding, pad_if_needed) and random
    flips.

    Resize((h, w)) without a crop is size=(h, w) and resize=(h, w). `sizes` changes the size of the
    crop only.

    Attributes:
        resize: length of the shorter side before the crop, or (height, width), in pixels; None: as
            stored.
        padding: black pixels around the image: one number, (left/right, top/bottom) or (left, top,
            right, bottom). Other colors and padding modes are those of the step Pad in `before`.
        pad_if_needed: whether images smaller than the crop are padded with more; otherwise they are
            refused.
    """

    size: Any = option(32, check_size)
    resize: Any = option(None, check_resize)
    padding: Any = option(
        0, check_pixels, 0, "(left/right, top/bottom)", "(left, top, right, bottom)"
    )
    pad_if_needed: bool = False

    @property
    def crops(self) -> bool:
        """False if the region that is decoded, or the whole resized image, is the crop already."""
        return any(self._sides) or self.pad_if_needed or self.resize not in (None, self.shape)

    @property
    def _sides(self) -> tuple[int, int, int, int]:
        return four_sides(self.padding)

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        numbers, (left, top, right, bottom) = draws.uniform([FLIP_DRAW, SHIFT_DRAW]), self._sides
        size = resize_sizes(source, self.resize) + np.array([top + bottom, left + right])

        # torchvision pads each side by all that is missing
        more = (
            np.maximum(np.array(self.shape) - size, 0)
            if self.pad_if_needed
            else np.zeros_like(size)
        )

        # all places of the crop within the padded image are equally likely; they are then counted
        # from the image's own corner
        crop = (
            np.floor(numbers[:2, :, 1].T * (size + 2 * more - self.shape + 1)).astype(np.int64)
            - more
            - (top, left)
        )

        return crop_geometry(source, self.resize, crop, self.shape, self.flips(numbers[:2, :, 0]))

    def check(self, manifest: Manifest) -> None:
        """Refuses images that are smaller than the crop: counts them, and names the first."""
        RandomTransform.check(self, manifest)
        left, top, right, bottom = self._sides
        needed = np.max([shape_of(size) for size in self.every_size], axis=0) - (
            top + bottom,
            left + right,
        )

        # a single number is the shorter side, so no side is shorter than it
        if self.pad_if_needed or (self.resize is not None and (needed <= self.resize).all()):
            return

        resized = [] if self.resize is None else [WholeResize(size=self.resize)]
        before = partial(smallest_sizes, [*self.before, *resized])
        if small := describe_small(self, manifest, needed, before):
            raise OptionError(
                type(self),
                f"size: {small}. Set pad_if_needed or resize, or leave these images out "
                "(Manifest.filter)",
            )
