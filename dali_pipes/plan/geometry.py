"""Where every pixel comes from: which window of an image is decoded, to what size it is resized, where it is cropped.

Integer arithmetic with torchvision's rounding, over arrays of images. Heights and widths are in pixels as stored in the file.
"""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from dali_pipes.plan.philox import Draws

Int = NDArray[np.int64]

# Numbers of the draws of one sample in one epoch. A number is never reused for something else.
FLIP_DRAW = 0
SHIFT_DRAW = 1
CROP_DRAW = 16  # and the nine after it: the attempts of a random resized crop
CROP_TRIES = 10


@dataclass(frozen=True, slots=True)
class Geometry:
    """The geometry of N images.

    Attributes:
        source: (N, 2) height and width of the image.
        window: (N, 4) top, left, height, width of the region to decode.
        resize: (N, 2) height and width the region is resized to.
        crop: (N, 2) top and left of the output in the resized region; areas outside the image are black.
        flip: (N,) mirrored left to right, after all of the above.
    """

    source: Int
    window: Int
    resize: Int
    crop: Int
    flip: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.source)

    def take(self, places: Int | slice) -> "Geometry":
        return Geometry(*(getattr(self, each.name)[places] for each in fields(self)))


def random_resized_crop(
    source: Int, size: int, scale: tuple[float, float], ratio: tuple[float, float], flip: float, draws: Draws
) -> Geometry:
    """A window of random area and aspect ratio, resized to `size` × `size`, and a random flip.

    The distribution is that of `torchvision.transforms.v2.RandomResizedCrop` and `RandomHorizontalFlip`: ten attempts, of which the
    first that fits counts, then the largest central window whose aspect ratio is allowed.

    Args:
        source: (N, 2) heights and widths.
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest width / height.
        flip: the probability of a flip.
    """
    flip_and_first_try = draws.uniform([FLIP_DRAW, CROP_DRAW])
    window, fits = _first_fit(flip_and_first_try[..., 1:], source, scale, ratio)
    if not fits.all():
        missed = ~fits
        tries = draws.uniform(np.arange(CROP_DRAW + 1, CROP_DRAW + CROP_TRIES), missed)
        retried, fits = _first_fit(tries, source[missed], scale, ratio)
        window[missed] = np.where(fits[:, None], retried, _central_window(source[missed], ratio))
    return Geometry(
        source=source,
        window=window,
        resize=np.full((len(source), 2), size),
        crop=np.zeros((len(source), 2), np.int64),
        flip=flip_and_first_try[0, :, 0] < flip,
    )


def _first_fit(
    numbers: NDArray[np.float64], source: Int, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Int, NDArray[np.bool_]]:
    """The window of the first attempt that fits into its image, and whether there is one, from (4, N, attempts) random numbers."""
    area, aspect, top, left = numbers
    height, width = source[:, :1], source[:, 1:]
    area = (scale[0] + (scale[1] - scale[0]) * area) * (height * width)
    low, high = np.log(ratio)
    aspect = np.exp(low + (high - low) * aspect)
    w, h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    at = np.arange(len(fits)), fits.argmax(axis=1)
    h, w = h[at], w[at]
    window = np.stack([top[at] * (source[:, 0] - h + 1), left[at] * (source[:, 1] - w + 1), h, w], axis=1)
    return window.astype(np.int64), fits[at]


def _central_window(source: Int, ratio: tuple[float, float]) -> Int:
    """The largest central window whose aspect ratio is within `ratio`."""
    height, width = source[:, 0], source[:, 1]
    aspect = width / height
    h = np.where(aspect < ratio[0], np.rint(width / ratio[0]), height).astype(np.int64)
    w = np.where(aspect > ratio[1], np.rint(height * ratio[1]), width).astype(np.int64)
    return np.stack([(height - h) // 2, (width - w) // 2, h, w], axis=1)


def padded_crop(source: Int, size: int, padding: int, flip: float, draws: Draws) -> Geometry:
    """The whole image at `size` × `size`, moved by up to `padding` pixels each way, and a random flip.

    The distribution is that of `torchvision.transforms.v2.RandomCrop(size, padding)` and `RandomHorizontalFlip`.
    """
    numbers = draws.uniform([FLIP_DRAW, SHIFT_DRAW])
    shift = np.floor(numbers[:2, :, 1].T * (2 * padding + 1)).astype(np.int64) - padding
    return Geometry(
        source=source,
        window=np.concatenate([np.zeros_like(source), source], axis=1),
        resize=np.full((len(source), 2), size),
        crop=shift,
        flip=numbers[0, :, 0] < flip,
    )


def resize_center_crop(source: Int, resize: int, size: int) -> Geometry:
    """The shorter side to `resize`, then the central `size` × `size`: torchvision's Resize(resize) and CenterCrop(size).

    The longer side is truncated (`int(resize * long / short)`), the offset rounded half to even, both as torchvision does.
    """
    shorter = source.min(axis=1, keepdims=True)
    resized = np.floor(resize * source / shorter).astype(np.int64)
    return Geometry(
        source=source,
        window=np.concatenate([np.zeros_like(source), source], axis=1),
        resize=resized,
        crop=np.rint((resized - size) / 2).astype(np.int64),
        flip=np.zeros(len(source), bool),
    )
