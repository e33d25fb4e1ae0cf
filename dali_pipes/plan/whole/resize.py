"""The resize of the whole image, before a crop that is resized once more."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_pipes.checks import check_choice, check_pixels
from dali_pipes.errors import ConfigError
from dali_pipes.options import option
from dali_pipes.plan.geometry import Int, resize_sizes
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.whole.base import INTERPOLATIONS, DrawnStep, WholeStep


@dataclass(kw_only=True, slots=True)
class WholeResize(WholeStep):
    """torchvision's Resize of the whole image, or albumentations' SmallestMaxSize.

    Attributes:
        size: of the shorter side, or (height, width), in pixels.
        antialias: False: the resize is OpenCV's INTER_LINEAR, as albumentations'.
        rounding: of the longer side, "down" as torchvision's, or "nearest" as albumentations'.
    """

    name: str = "Resize"
    interpolation: str = option("bilinear", check_choice, INTERPOLATIONS)
    size: Any = option(256, check_pixels, 1, "(height, width)")
    antialias: bool = True
    rounding: str = option("down", check_choice, ("down", "nearest"))

    def __post_init__(self) -> None:
        WholeStep.__post_init__(self)
        if not self.antialias and self.interpolation != "bilinear":
            raise ConfigError(
                f"before: Resize has antialias=False, which needs interpolation=bilinear, and not "
                f"{self.interpolation}"
            )

    def smallest(self, source: Int) -> Int:
        size = self._sizes(source)
        return size if self.p == 1 else np.minimum(size, source)

    def draw(self, draws: Draws, first: int, source: Int) -> DrawnStep:
        size = self._sizes(source)
        happens = draws.uniform(first)[0] < self.p
        size = np.where(happens[:, None], size, source)
        kind = "resize" if self.antialias else "plain_resize"
        return DrawnStep(
            kind, self.interpolation, source, size, happens, np.zeros((len(source), 8))
        )

    def _sizes(self, source: Int) -> Int:
        """(N, 2) heights and widths that it gives to images of `source`."""
        if self.rounding == "down" or isinstance(self.size, tuple):
            return resize_sizes(source, self.size)
        # albumentations' round(side * scale), half to even
        scale = self.size / source.min(axis=1, keepdims=True)
        return np.maximum(np.rint(source * scale), 1).astype(np.int64)
