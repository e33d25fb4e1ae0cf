"""The central crop with random flips."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_if_given, check_pixels
from dali_pipes.options import option
from dali_pipes.plan.geometry import FLIP_DRAW, Geometry, center_crop
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.transforms.base import RandomTransform


@dataclass(kw_only=True, slots=True)
class CenterCropTransform(RandomTransform):
    """torchvision's Resize(resize) and CenterCrop(size) as `EvalTransform`, with random flips.

    Attributes:
        resize: length of the shorter side before the crop, or (height, width), in pixels; None: as
            stored.
        flip_before_crop: the flips come before the crop. Where an odd number of pixels is cropped
            away, that moves a flipped image by one pixel.
    """

    resize: Any = option(256, check_if_given, check_pixels, 1, "(height, width)")
    flip_before_crop: bool = False

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        flips = self.flips(draws.uniform(FLIP_DRAW)[:2])
        return center_crop(source, self.resize, self.shape, flips, self.flip_before_crop)
