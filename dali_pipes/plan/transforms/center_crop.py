"""The central crop with random flips."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_if_given, check_pixels
from dali_pipes.errors import OptionError
from dali_pipes.options import option
from dali_pipes.plan.geometry import FLIP_DRAW, Geometry, center_crop
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.transforms.base import RandomTransform, Transform


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

    resize: Any = option(256, check_if_given, check_pixels, 1, "(height, width)")
    pad_if_needed: bool = False
    flip_before_crop: bool = False

    def __post_init__(self) -> None:
        RandomTransform.__post_init__(self)
        if not self.pad_if_needed:
            refuse_larger_crop(self, self.resize, self.shape)

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        flips = self.flips(draws.uniform(FLIP_DRAW)[:2])
        return center_crop(source, self.resize, self.shape, flips, self.flip_before_crop)
