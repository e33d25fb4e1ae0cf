"""The random resized crop, with which image classifiers are trained."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_ordered_pair
from dali_pipes.options import option
from dali_pipes.plan.geometry import CROP_DRAW, CROP_TRIES, FLIP_DRAW, Geometry, Int
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.transforms.base import RandomTransform


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
        to = np.tile(self.shape, (len(source), 1))
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

    if not fits.all():
        missed = ~fits
        tries = draws.uniform(np.arange(CROP_DRAW + 1, CROP_DRAW + CROP_TRIES), missed)
        retried, fits = _first_fit(tries, source[missed], scale, ratio)
        region[missed] = np.where(fits[:, None], retried, _central_region(source[missed], ratio))

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
    region = np.stack(
        [top[at] * (source[:, 0] - h + 1), left[at] * (source[:, 1] - w + 1), h, w], axis=1
    )

    return region.astype(np.int64), fits[at]


def _central_region(source: Int, ratio: tuple[float, float]) -> Int:
    """The largest central region whose aspect ratio is within `ratio`."""
    height, width = source[:, 0], source[:, 1]
    aspect = width / height
    h = np.where(aspect < ratio[0], np.rint(width / ratio[0]), height).astype(np.int64)
    w = np.where(aspect > ratio[1], np.rint(height * ratio[1]), width).astype(np.int64)
    return np.stack([(height - h) // 2, (width - w) // 2, h, w], axis=1)
