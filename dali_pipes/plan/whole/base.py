"""What all steps on whole images have in common, and what is drawn of one.

A step is a dataclass of options that draws what happens to each image. Each step of a list has
`DRAWS` draw numbers of each sample for itself.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_choice, check_int, check_number, describe_value, to_python
from dali_pipes.errors import ConfigError
from dali_pipes.options import Options, check_options, option
from dali_pipes.plan.geometry import Int
from dali_pipes.plan.philox import Draws

DRAWS = 16  # draw numbers reserved for each step
INTERPOLATIONS = ("nearest", "bilinear", "bicubic")  # Pillow's
PADDING_MODES = ("constant", "edge", "reflect", "symmetric")  # torchvision's and NumPy's
Float = NDArray[np.float64]
Color = tuple[int, int, int]  # red, green and blue, from 0 to 255


def check_fill(name: str, value: Any) -> Color:
    """Returns a color, of which one number stands for all three; YAML has only lists."""
    value = to_python(value)
    numbers = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(numbers) not in (1, 3):
        raise ConfigError(
            f"{name} is {describe_value(value)}; it takes a number from 0 to 255, or three: red, "
            "green and blue"
        )
    red, green, blue = (check_int(name, number, 0, 255) for number in numbers * (3 // len(numbers)))
    return red, green, blue


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """One step on N images."""

    # how `numbers` are read: "affine", "perspective", "resize", "plain_resize", "pad" or "function"
    kind: str
    interpolation: str  # "" of a function
    source: Int  # (N, 2) height and width of the image before the step
    size: Int  # (N, 2) and after it
    happens: NDArray[np.bool_]  # (N,) elsewhere the image stays as it is
    # (N, 8) a, b, …, h: the pixel at (x, y) shows ((a x + b y + c), (d x + e y + f)) of the image
    # before, both divided by g x + h y + 1. Both are measured from the corner of the first pixel.
    # For "pad" the first four are the pixels at the left, top, right and bottom. Not used by
    # resizes; of a function those of `Augment.draw`.
    numbers: Float
    fill: Color = (0, 0, 0)  # of what comes from outside the image
    padding_mode: str = "constant"  # of "pad", one of `PADDING_MODES`

    def take(self, places: Int | slice | int) -> "DrawnStep":
        """Some of the images, in this order; for a single index the arrays have no dimension N."""
        return replace(
            self,
            source=self.source[places],
            size=self.size[places],
            happens=self.happens[places],
            numbers=self.numbers[places],
        )


@dataclass(kw_only=True, slots=True)
class WholeStep(Options, ABC):
    """A step on whole images.

    Attributes:
        name: torchvision's.
        interpolation: of the pixels, "nearest", "bilinear" or "bicubic", as Pillow does it.
        p: the probability that it happens.
    """

    name: str = ""
    interpolation: str = option("nearest", check_choice, INTERPOLATIONS)
    p: float = option(1.0, check_number, 0, 1)

    def __post_init__(self) -> None:
        check_options(self)

    def smallest(self, source: Int) -> Int:
        """(N, 2) the smallest heights and widths that images of `source` get if it happens."""
        return source

    @property
    def has_one_size(self) -> bool:
        """Whether `smallest` is the one size that becomes of an image if the step happens."""
        return True

    def least(self, source: Int) -> Int:
        """(N, 2) heights and widths that are not above those of any image that is at least as high
        and as wide as `source`.
        """
        return self.smallest(source)

    @abstractmethod
    def draw(self, draws: Draws, first: int, source: Int) -> DrawnStep:
        """Draws it for images of `source`, (N, 2) heights and widths, by the draws from `first`
        on.
        """


def fill_of(step: WholeStep) -> Color:
    """The color of what comes from outside the image; that of a step without this option is never
    seen.
    """
    fill: Color = getattr(step, "fill", (0, 0, 0))
    return fill
