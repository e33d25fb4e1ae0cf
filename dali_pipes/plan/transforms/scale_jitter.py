"""Large scale jitter: torchvision's references train Mask R-CNN with it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_pipes.checks import check_ordered_pair
from dali_pipes.options import option
from dali_pipes.plan.geometry import (
    FLIP_DRAW,
    SCALE_DRAW,
    SHIFT_DRAW,
    Geometry,
    Int,
    scale_sizes,
    whole_image_geometry,
)
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.transforms.base import RandomTransform, check_size


@dataclass(kw_only=True, slots=True)
class ScaleJitterTransform(RandomTransform):
    """torchvision's ScaleJitter, then a crop of `size` at a random place or black at the right and
    below, and random flips.

    The crop is FixedSizeCrop of torchvision's references. Large scale jitter: Ghiasi et al.,
    "Simple Copy-Paste" (CVPR 2021).

    Attributes:
        scale: smallest and largest factor; at 1 the image just fits into `size`.
    """

    size: Any = option(1024, check_size)
    scale: tuple[float, float] = option((0.1, 2.0), check_ordered_pair)

    def geometry(self, source: Int, draws: Draws) -> Geometry:
        numbers, (low, high) = draws.uniform([FLIP_DRAW, SHIFT_DRAW, SCALE_DRAW]), self.scale
        to = scale_sizes(
            source,
            (np.array(self.shape) / source).min(axis=1) * (low + (high - low) * numbers[0, :, 2]),
        )
        crop = np.floor(np.maximum(to - self.shape, 0) * numbers[0, :, 1, None]).astype(np.int64)
        return whole_image_geometry(source, to, crop, self.flips(numbers[:2, :, 0]))
