"""Where every pixel comes from: the region that is decoded, its new size, and the crop of that.

`Geometry` holds these for N images. `draw_regions`, `center_crop` and `crop_geometry` make them for
the transforms. All is integer arithmetic with torchvision's rounding, over arrays of images.
Heights and widths are in pixels as stored in the file, or of the upright image with exif=apply.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from dali_pipes.plan.philox import Draws

Int = NDArray[np.int64]
Pair = tuple[int, int]  # height, width
Resize = int | Pair | None  # of the shorter side, of both, or as stored

# Numbers of the draws of one sample in one epoch. A number is never reused for something else.
FLIP_DRAW = 0
SHIFT_DRAW = 1
SCALE_DRAW = 2
CROP_DRAW = 16  # and the nine after it: the attempts of a random resized crop
CROP_TRIES = 10
# from 32 on: the policies of augment/policies.py
BOXES_DRAW = 2**15  # and all after it: regions that are tried around boxes


@dataclass(frozen=True, slots=True)
class Geometry:
    """The geometry of N images."""

    source: Int  # (N, 2) height and width of the image
    region: Int  # (N, 4) top, left, height, width of what is decoded of the image
    resize: Int  # (N, 2) height and width the region is resized to
    # (N, 2) top and left of the output in the resized region; areas outside the image are black
    crop: Int
    flip: NDArray[np.bool_]  # (N,) mirrored left to right, after all of the above
    vertical_flip: NDArray[np.bool_]  # (N,) mirrored top to bottom

    def __len__(self) -> int:
        return len(self.source)

    def take(self, places: Int | slice | int) -> "Geometry":
        """Some of the images, in this order; for a single index the arrays have no dimension N."""
        return Geometry(*(getattr(self, each.name)[places] for each in fields(self)))


def draw_regions(
    source: Int, scale: tuple[float, float], ratio: tuple[float, float], draws: Draws
) -> tuple[Int, NDArray[np.float64]]:
    """(N, 4) regions of random area and aspect ratio, and (2, N) random numbers for flips.

    As in torchvision, the first of ten attempts that fits counts; if none does, the largest central
    region with an allowed aspect ratio.

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
    low, high = np.log(ratio)
    aspect = np.exp(low + (high - low) * aspect)

    w, h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)

    # argmax of booleans is the first attempt that fits
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


def center_crop(source: Int, resize: Resize, shape: Pair, flips: NDArray[np.bool_]) -> Geometry:
    """The geometry of torchvision's Resize(resize) and CenterCrop(shape), with (2, N) flips.

    As in torchvision the offset is rounded half to even. If the image is too small, half of what is
    missing is black at the top and the left, rounded down.
    """
    room = resize_sizes(source, resize) - shape
    crop = np.where(room < 0, -(-room // 2), np.rint(room / 2)).astype(np.int64)
    return crop_geometry(source, resize, crop, shape, flips)


def resize_sizes(source: Int, resize: Resize) -> Int:
    """(N, 2) heights and widths after torchvision's Resize(resize).

    It truncates the longer side; None leaves the sizes as stored.
    """
    if resize is None:
        return source
    if isinstance(resize, tuple):
        return np.tile(resize, (len(source), 1))
    return np.floor(resize * source / source.min(axis=1, keepdims=True)).astype(np.int64)


def crop_geometry(
    source: Int, resize: Resize, crop: Int, shape: Pair, flips: NDArray[np.bool_]
) -> Geometry:
    """The geometry of a crop of `shape` at `crop`, (N, 2), in the resized image.

    Without a resize only the visible part is decoded, or one pixel if nothing is visible.
    """
    start, stop = np.zeros_like(source), source
    if resize is None:
        start, stop = crop.clip(0, source - 1), (crop + shape).clip(1, source)

    region, to = np.concatenate([start, stop - start], axis=1), resize_sizes(stop - start, resize)
    return Geometry(source, region, to, crop - start, *flips)
