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
    """torchvision's Resize of the whole image, albumentations' SmallestMaxSize or LongestMaxSize.

    Attributes:
        size: of one side, or (height, width), in pixels.
        side: which side has this size, the "shorter" or the "longer" one.
        antialias: False: the resize is OpenCV's INTER_LINEAR or INTER_CUBIC, as albumentations'.
        rounding: of the other side, "down" as torchvision's, or "nearest" as albumentations'.
    """

    name: str = "Resize"
    interpolation: str = option("bilinear", check_choice, INTERPOLATIONS)
    size: Any = option(256, check_pixels, 1, "(height, width)")
    antialias: bool = True
    rounding: str = option("down", check_choice, ("down", "nearest"))
    side: str = option("shorter", check_choice, ("shorter", "longer"))

    def __post_init__(self) -> None:
        WholeStep.__post_init__(self)
        if not self.antialias and self.interpolation == "nearest":
            raise ConfigError(
                "before: Resize has antialias=False, which needs interpolation=bilinear or "
                "bicubic, and not nearest"
            )

    def smallest(self, source: Int) -> Int:
        return self._sizes(source)

    def least(self, source: Int) -> Int:
        # the longer an image is, the narrower it gets where its longer side has the size
        least = self.size if isinstance(self.size, tuple) else (self.size,) * 2
        size = np.tile(least if self.side == "shorter" else (1, 1), (len(source), 1))
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
        is_shorter = self.side == "shorter"
        if isinstance(self.size, tuple) or (is_shorter and self.rounding == "down"):
            return resize_sizes(source, self.size)
        side = (source.min if is_shorter else source.max)(axis=1, keepdims=True)
        if self.rounding == "down":
            return np.maximum(source * self.size // side, 1)
        # albumentations' round(side * scale), half to even
        return np.maximum(np.rint(source * (self.size / side)), 1).astype(np.int64)
