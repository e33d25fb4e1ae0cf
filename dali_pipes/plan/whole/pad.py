"""The padding of the whole image, before a crop of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dali_pipes.checks import check_choice, check_if_given, check_pixels
from dali_pipes.options import option
from dali_pipes.plan.geometry import Int
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.whole.base import PADDING_MODES, DrawnStep, WholeStep, check_fill


@dataclass(kw_only=True, slots=True)
class WholePad(WholeStep):
    """torchvision's Pad, and the padding of its RandomCrop and of albumentations' PadIfNeeded.

    Attributes:
        padding: pixels around the image: one number, (left/right, top/bottom) or (left, top, right,
            bottom).
        min_size: (height, width), or one number for both; what a smaller image lacks is padded.
        missing: "twice" pads each of two sides by all that is missing, as
            RandomCrop(pad_if_needed=True) does; "halved" by one half, as PadIfNeeded does, which
            has an odd pixel at the bottom or the right.
        padding_mode: "constant", "edge", "reflect" (without the outermost pixel) or "symmetric"
            (with it).
        fill: the color of "constant", from 0 to 255: one number, or red, green and blue.
    """

    name: str = "Pad"
    padding: Any = option(
        0, check_pixels, 0, "(left/right, top/bottom)", "(left, top, right, bottom)"
    )
    min_size: Any = option(None, check_if_given, check_pixels, 1, "(height, width)")
    missing: str = option("twice", check_choice, ("twice", "halved"))
    padding_mode: str = option("constant", check_choice, PADDING_MODES)
    fill: Any = option((0, 0, 0), check_fill)

    @property
    def sides(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of `padding`."""
        return four_sides(self.padding)

    def smallest(self, source: Int) -> Int:
        return source + _sum_of(self.around(source))

    def least(self, source: Int) -> Int:
        # "twice" makes more of a smaller image, but of none less than `min_size`
        if self.p < 1:
            return source
        padded = source + _sum_of(np.tile(self.sides, (len(source), 1)))
        return padded if self.min_size is None else np.maximum(padded, self._least_size)

    @property
    def _least_size(self) -> tuple[int, int]:
        """`min_size` as height and width; it must be given."""
        return (self.min_size,) * 2 if isinstance(self.min_size, int) else tuple(self.min_size)

    def draw(self, draws: Draws, first: int, source: Int) -> DrawnStep:
        happens = draws.uniform(first)[0] < self.p
        around = self.around(source) * happens[:, None]
        numbers = np.pad(around, ((0, 0), (0, 4))).astype(np.float64)
        size = source + _sum_of(around)
        return DrawnStep(
            "pad", "nearest", source, size, happens, numbers, self.fill, self.padding_mode
        )

    def around(self, source: Int) -> Int:
        """(N, 4) pixels at the left, top, right and bottom."""
        around = np.tile(self.sides, (len(source), 1))
        if self.min_size is None:
            return around
        missing = np.maximum(np.array(self._least_size) - source - _sum_of(around), 0)
        if self.missing == "halved":
            first = missing // 2
            return around + np.concatenate([first, missing - first], axis=1)[:, [1, 0, 3, 2]]
        return around + missing[:, [1, 0, 1, 0]]


def four_sides(padding: Any) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of an option `padding`."""
    numbers = (padding,) if isinstance(padding, int) else tuple(padding)
    left, top, right, bottom = numbers * (4 // len(numbers))
    return left, top, right, bottom


def _sum_of(around: Int) -> Int:
    """(N, 2) by how much height and width grow."""
    return around[:, [1, 0]] + around[:, [3, 2]]
