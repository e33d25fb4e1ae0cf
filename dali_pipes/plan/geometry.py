"""Where every pixel comes from: the region that is decoded, its new size, and the crop of that.

`Geometry` holds these for N images. The functions make those that several transforms have in
common. All is integer arithmetic with torchvision's rounding, over arrays of images. Heights and
widths are in pixels as stored in the file, or of the upright image with exif=apply.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int = NDArray[np.int64]
Pair = tuple[int, int]  # height, width
Resize = int | Pair | None  # of the shorter side, of both, or as stored


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

    @property
    def region_start(self) -> Int:
        """(N, 2) top and left of the region."""
        return self.region[..., :2]

    @property
    def region_size(self) -> Int:
        """(N, 2) height and width of the region."""
        return self.region[..., 2:]

    def take(self, places: Int | slice | int) -> "Geometry":
        """Some of the images, in this order; for a single index the arrays have no dimension N."""
        return Geometry(
            self.source[places],
            self.region[places],
            self.resize[places],
            self.crop[places],
            self.flip[places],
            self.vertical_flip[places],
        )


def center_crop(
    source: Int,
    resize: Resize,
    shape: Pair,
    flips: NDArray[np.bool_],
    flip_before_crop: bool = False,
) -> Geometry:
    """The geometry of torchvision's Resize(resize) and CenterCrop(shape), with (2, N) flips after
    it, or before it.

    As in torchvision the offset is rounded half to even. If the image is too small, half of what is
    missing is black at the top and the left, rounded down.
    """
    room = resize_sizes(source, resize) - shape
    crop = np.where(room < 0, -(-room // 2), np.rint(room / 2)).astype(np.int64)
    if flip_before_crop:
        # what is cropped of a mirrored image; in one that is not, it is as far from the other side
        crop = np.where(flips[::-1].T, room - crop, crop)
    return crop_geometry(source, resize, crop, shape, flips)


def resize_sizes(source: Int, resize: Resize) -> Int:
    """(N, 2) heights and widths after torchvision's Resize(resize).

    It truncates the longer side; None leaves the sizes as stored.
    """
    if resize is None:
        return source
    if isinstance(resize, tuple):
        return np.tile(resize, (len(source), 1))
    # torchvision's int(size * long / short): first the product, then a division of floats
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


def scale_sizes(source: Int, ratio: NDArray[np.float64]) -> Int:
    """(N, 2) heights and widths times (N,) ratios, truncated as in torchvision, and at least 1."""
    return np.maximum((source * ratio[:, None]).astype(np.int64), 1)


def whole_image_geometry(source: Int, resize: Int, crop: Int, flips: NDArray[np.bool_]) -> Geometry:
    """The geometry of whole images that are resized to `resize`, (N, 2), with (2, N) flips.

    The output is at `crop`, (N, 2).
    """
    region = np.concatenate([np.zeros_like(source), source], axis=1)
    return Geometry(source, region, resize, crop, *flips)
