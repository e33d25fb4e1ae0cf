"""Quarter turns, transposition and crops of a drawn size of the whole image, as albumentations has
them. Every pixel of the result is one of the image.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_int, check_number, describe_value, to_python
from dali_pipes.errors import ConfigError
from dali_pipes.options import option
from dali_pipes.plan.geometry import Int
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.whole.base import DrawnStep, Float, WholeStep

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
