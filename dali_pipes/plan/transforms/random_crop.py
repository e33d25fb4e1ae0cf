"""The random crop of images that are padded, or as they are stored."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_if_given, check_pixels
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import OptionError
from dali_pipes.options import option
from dali_pipes.plan.geometry import (
    FLIP_DRAW,
    SHIFT_DRAW,
    Geometry,
    crop_geometry,
    resize_sizes,
)
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.transforms.base import RandomTransform, check_size, find_small, shape_of
from dali_pipes.plan.whole import smallest_sizes
from dali_pipes.plan.whole.pad import four_sides
from dali_pipes.plan.whole.resize import WholeResize


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
    resize: Any = option(None, check_if_given, check_pixels, 1, "(height, width)")
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
        count, first = find_small(
            self, manifest, needed, partial(smallest_sizes, [*self.before, *resized])
        )
        if count:
            height, width = needed.tolist()
            raise OptionError(
                type(self),
                f"size: {count:,} of {len(manifest):,} images are smaller than the random crop, "
                f"which needs a height of {height} and a width of {width} pixels; the first is "
                f"{manifest.name(first)}. Set pad_if_needed or resize, or leave these images out "
                "(Manifest.filter)",
            )
