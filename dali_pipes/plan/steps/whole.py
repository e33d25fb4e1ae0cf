"""Steps on a whole image, before its region is cut out, and what is drawn of one.

Every backend that takes part carries them out with the same function (backends/pixels/whole.py),
which does what torchvision does with a PIL image. A step is a dataclass of options that draws what
happens to each image. Each step of a list has `STEP_DRAWS` draw numbers of each sample for itself.

Those of this page need no warp: the image is resized, padded, cropped, turned, or given to a
function of the user's.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import (
    check_choice,
    check_fill,
    check_int,
    check_number,
    check_pixels,
    describe_value,
    to_python,
)
from dali_pipes.errors import ConfigError
from dali_pipes.options import Options, check_options, option
from dali_pipes.plan.draws import Draws
from dali_pipes.plan.geometry import Int, resize_sizes
from dali_pipes.plan.steps.functions import Augment
from dali_pipes.plan.steps.operations import FILTERS

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")  # torchvision's and NumPy's
Float = NDArray[np.float64]
Color = tuple[int, int, int]  # red, green and blue, from 0 to 255


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
    interpolation: str = option("nearest", check_choice, FILTERS)
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
    interpolation: str = option("bilinear", check_choice, FILTERS)
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
    interpolation: str = field(default="nearest", init=False)
    padding: Any = option(
        0, check_pixels, 0, "(left/right, top/bottom)", "(left, top, right, bottom)"
    )
    min_size: Any = option(None, check_pixels, 1, "(height, width)")
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


# (a, b, c, d, e, f) of a counter-clockwise turn by 0 to 3 quarters, as of `DrawnStep.numbers`, with
# c as a share of the image's width and f of its height
_TURNS = np.array(
    [[1, 0, 0, 0, 1, 0], [0, -1, 1, 1, 0, 0], [-1, 0, 1, 0, -1, 1], [0, 1, 0, -1, 0, 1]]
)
_TRANSPOSE = np.array([0, 1, 0, 1, 0, 0])
_LONGEST = 2**24


@dataclass(kw_only=True, slots=True)
class WholeQuarterTurn(WholeStep):
    """albumentations' RandomRotate90: a turn by 0, 1, 2 or 3 right angles, with equal chances."""

    name: str = "RandomRotate90"
    interpolation: str = field(default="nearest", init=False)

    def smallest(self, source: Int) -> Int:
        return np.tile(source.min(axis=1, keepdims=True), 2)

    def draw(self, draws: Draws, first: int, source: Int) -> DrawnStep:
        happens, quarters, *_ = draws.uniform(first)
        turns = (quarters * 4).astype(np.int64)
        return _drawn(source, happens < self.p, _TURNS[turns], turns % 2 == 1)


@dataclass(kw_only=True, slots=True)
class WholeTranspose(WholeStep):
    """albumentations' Transpose: rows become columns."""

    name: str = "Transpose"
    interpolation: str = field(default="nearest", init=False)
    p: float = option(0.5, check_number, 0, 1)

    def smallest(self, source: Int) -> Int:
        return source[:, ::-1] if self.p == 1 else np.tile(source.min(axis=1, keepdims=True), 2)

    def draw(self, draws: Draws, first: int, source: Int) -> DrawnStep:
        happens = draws.uniform(first)[0] < self.p
        table = np.tile(_TRANSPOSE, (len(source), 1))
        return _drawn(source, happens, table, np.ones(len(source), bool))


def _check_heights(name: str, value: Any) -> tuple[int, int]:
    value = to_python(value)
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise ConfigError(
            f"{name} is {describe_value(value)}; it takes two numbers of pixels, the smaller first"
        )
    low, high = (check_int(name, each, 1, _LONGEST) for each in value)
    if low > high:
        raise ConfigError(f"{name} is {[low, high]}; the smaller number comes first")
    return low, high


@dataclass(kw_only=True, slots=True)
class WholeSizedCrop(WholeStep):
    """The crop of albumentations' RandomSizedCrop, which its resize follows: anywhere in the image.

    Attributes:
        min_max_height: the smallest and the largest height, in pixels.
        w2h_ratio: the width as a share of the height.
    """

    name: str = "RandomSizedCrop"
    interpolation: str = field(default="nearest", init=False)
    min_max_height: Any = option((224, 224), _check_heights)
    w2h_ratio: float = option(1.0, check_number, 1e-3, 1e3)

    @property
    def has_one_size(self) -> bool:
        return self.min_max_height[0] == self.min_max_height[1]

    def smallest(self, source: Int) -> Int:
        low = self.min_max_height[0]
        return np.minimum(source, [low, max(int(low * self.w2h_ratio), 1)])

    def draw(self, draws: Draws, first: int, source: Int) -> DrawnStep:
        happens, height, y, x = draws.uniform(first)
        low, high = self.min_max_height
        rows = low + (height * (high - low + 1)).astype(np.int64)
        columns = np.maximum((rows * self.w2h_ratio).astype(np.int64), 1)
        # an image that is smaller is cropped as far as it reaches
        size = np.minimum(np.stack([rows, columns], axis=1), source)
        corner = ((source - size + 1) * np.stack([y, x], axis=1)).astype(np.int64)

        ones, zeros = np.ones(len(source)), np.zeros(len(source))
        numbers = np.stack([ones, zeros, corner[:, 1], zeros, ones, corner[:, 0]], axis=1)
        return _moved(source, happens < self.p, numbers, size)


def _drawn(
    source: Int, happens: NDArray[np.bool_], table: Int, is_swapped: NDArray[np.bool_]
) -> DrawnStep:
    """Of rows like those of `_TURNS`, and whether height and width change places."""
    numbers = table.astype(np.float64)
    numbers[:, [2, 5]] *= source[:, ::-1]
    return _moved(source, happens, numbers, np.where(is_swapped[:, None], source[:, ::-1], source))


def _moved(source: Int, happens: NDArray[np.bool_], numbers: Float, size: Int) -> DrawnStep:
    size = np.where(happens[:, None], size, source)
    numbers = np.pad(numbers, ((0, 0), (0, 2)))
    return DrawnStep("affine", "nearest", source, size, happens, numbers)


def check_function(option: str, function: Augment) -> None:
    """Refuses an `Augment` that is for finished images."""
    wrong = {
        "where='normalized'": function.where == "normalized",
        "per='batch'": function.per == "batch",
        "geometry": function.geometry is not None,
    }
    for text, is_set in wrong.items():
        if is_set:
            raise ConfigError(
                f"{option}: {function.title} is an Augment with {text}; a whole image is a single "
                "one of bytes, without boxes and masks, so leave that out, or put it into augment"
            )


def draw_function(function: Augment, draws: Draws, first: int, source: Int) -> DrawnStep:
    """Draws its numbers for images of `source`, (N, 2), by the draws from `first` on."""
    always = np.ones(len(source), bool)
    return DrawnStep("function", "", source, source, always, function.draw(draws, first))
