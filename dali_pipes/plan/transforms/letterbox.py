"""The whole image within the output, black around it: YOLO's input."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_pipes.options import option
from dali_pipes.plan.geometry import FLIP_DRAW, Geometry, Int, whole_image_geometry
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.transforms.base import RandomTransform, check_size


@dataclass(kw_only=True, slots=True)
class LetterboxTransform(RandomTransform):
    """The whole image as large as fits into `size` with its aspect ratio, centered, black around
    it; then random flips.

    The other side is rounded to the nearest pixel; an odd rest is one pixel more at the bottom or
    the right.
    """

    size: Any = option(640, check_size)

    @property
    def training(self) -> bool:
        return self.flips_or_augments

    def geometry(self, source: Int, draws: Draws) -> Geometry:
        ratio = (np.array(self.shape) / source).min(axis=1, keepdims=True)
        to = np.rint(source * ratio).astype(np.int64).clip(1, self.shape)
        flips = self.flips(draws.uniform(FLIP_DRAW)[:2])
        return whole_image_geometry(source, to, -((self.shape - to) // 2), flips)
