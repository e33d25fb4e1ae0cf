"""The resize of the whole image, before a crop that is resized once more."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_pipes.checks import check_choice, check_pixels
from dali_pipes.options import option
from dali_pipes.plan.geometry import Int, resize_sizes
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.whole.base import INTERPOLATIONS, DrawnStep, WholeStep


@dataclass(kw_only=True, slots=True)
class WholeResize(WholeStep):
    """torchvision's Resize of the whole image.

    Attributes:
        size: of the shorter side, or (height, width), in pixels.
    """

    name: str = "Resize"
    interpolation: str = option("bilinear", check_choice, INTERPOLATIONS)
    size: Any = option(256, check_pixels, 1, "(height, width)")

    def smallest(self, source: Int) -> Int:
        size = resize_sizes(source, self.size)
        return size if self.p == 1 else np.minimum(size, source)

    def draw(self, draws: Draws, first: int, source: Int) -> DrawnStep:
        size = resize_sizes(source, self.size)
        happens = draws.uniform(first)[0] < self.p
        size = np.where(happens[:, None], size, source)
        return DrawnStep(
            "resize", self.interpolation, source, size, happens, np.zeros((len(source), 8))
        )
