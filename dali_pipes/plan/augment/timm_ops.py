"""The operations of timm's policies, by timm's names, and what a level from 0 to 10 means for each
(timm/data/auto_augment.py).

`apply_levels` turns timm's operations and levels into ours; `Layer` draws whether an operation
happens and how much its level differs from the planned one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dali_pipes.plan.augment.operations import CODE, Codes, Numbers, Slot
from dali_pipes.plan.philox import Draws

Levels = NDArray[np.float64]
Fill = tuple[int, int, int]
INTERPOLATIONS = ("bilinear", "bicubic", "random")
LAYER_DRAWS = 2  # draws of each layer


@dataclass(frozen=True, slots=True)
class TimmOp:
    """An operation of timm: ours, and its magnitude.

    Attributes:
        magnitude: of levels from 0 to 10, of signs (1 or -1), and of the image's height and width.
    """

    op: str
    magnitude: Callable[[Levels, Levels, tuple[int, int]], Levels]


def _shift(axis: int, share: float) -> Callable[[Levels, Levels, tuple[int, int]], Levels]:
    return lambda level, sign, shape: sign * level / 10 * share * shape[axis]


def _enhance(level: Levels, sign: Levels, shape: tuple[int, int]) -> Levels:
    return level / 10 * 1.8 + 0.1 - 1


def _enhance_more(level: Levels, sign: Levels, shape: tuple[int, int]) -> Levels:
    return np.maximum(0.1, 1 + sign * level / 10 * 0.9) - 1


def _threshold(thresholds: Levels) -> Levels:
    # halfway between two pixel values, as RandomSolarize has it
    return (thresholds - 0.5) / 255


def _nothing(level: Levels, sign: Levels, shape: tuple[int, int]) -> Levels:
    return np.zeros_like(level)


TIMM_OPS = {
    "AutoContrast": TimmOp("AutoContrast", _nothing),
    "Equalize": TimmOp("EqualizeInSteps", _nothing),
    "Invert": TimmOp("Invert", _nothing),
    "Rotate": TimmOp("Rotate", lambda level, sign, shape: sign * level / 10 * 30),
    "Posterize": TimmOp("Posterize", lambda level, sign, shape: np.floor(level / 10 * 4)),
    "PosterizeIncreasing": TimmOp(
        "Posterize", lambda level, sign, shape: 4 - np.floor(level / 10 * 4)
    ),
    "PosterizeOriginal": TimmOp(
        "Posterize", lambda level, sign, shape: 4 + np.floor(level / 10 * 4)
    ),
    "Solarize": TimmOp(
        "Solarize",
        lambda level, sign, shape: _threshold(np.minimum(256, np.floor(level / 10 * 256))),
    ),
    "SolarizeIncreasing": TimmOp(
        "Solarize",
        lambda level, sign, shape: _threshold(256 - np.minimum(256, np.floor(level / 10 * 256))),
    ),
    "SolarizeAdd": TimmOp(
        "SolarizeAdd", lambda level, sign, shape: np.minimum(128, np.floor(level / 10 * 110))
    ),
    "Color": TimmOp("Color", _enhance),
    "ColorIncreasing": TimmOp("Color", _enhance_more),
    "Contrast": TimmOp("Contrast", _enhance),
    "ContrastIncreasing": TimmOp("Contrast", _enhance_more),
    "Brightness": TimmOp("Brightness", _enhance),
    "BrightnessIncreasing": TimmOp("Brightness", _enhance_more),
    "Sharpness": TimmOp("Sharpness", _enhance),
    "SharpnessIncreasing": TimmOp("Sharpness", _enhance_more),
    "ShearX": TimmOp("ShearX", lambda level, sign, shape: sign * level / 10 * 0.3),
    "ShearY": TimmOp("ShearY", lambda level, sign, shape: sign * level / 10 * 0.3),
    "TranslateXRel": TimmOp("ShiftX", _shift(1, 0.45)),
    "TranslateYRel": TimmOp("ShiftY", _shift(0, 0.45)),
}


@dataclass(frozen=True, slots=True)
class LevelNoise:
    """How much the level of an operation differs from the planned one.

    Attributes:
        std: the standard deviation; infinite: the level is uniform from 0 to the planned one.
        most: the highest level.
    """

    std: float = 0.0
    most: float = 10.0

    def levels(self, planned: Levels, numbers: NDArray[np.float64]) -> Levels:
        """Levels for (N,) planned ones, from (2, N) random numbers in [0, 1)."""
        levels = planned
        if self.std == np.inf:
            levels = planned * numbers[0]
        elif self.std > 0:
            # Box and Muller; 1 - x, since the logarithm of 0 is infinite
            radius = np.sqrt(-2 * np.log(1 - numbers[0]))
            levels = planned + self.std * radius * np.cos(2 * np.pi * numbers[1])
        return np.clip(levels, 0, self.most)


def slots_of(names: Sequence[str], interpolation: str, fill: Fill) -> tuple[Slot, ...]:
    """The slots of one layer: one, or one for each interpolation that is drawn."""
    ops = tuple(dict.fromkeys(TIMM_OPS[name].op for name in names))
    kinds = ("bilinear", "bicubic") if interpolation == "random" else (interpolation,)
    return tuple(Slot(ops, kind, fill=fill) for kind in kinds)


def draw_layer(
    draws: Draws,
    first: int,
    shape: tuple[int, int],
    chosen: NDArray[np.object_],
    happens: NDArray[np.float64],
    levels: Levels,
    noise: LevelNoise,
    interpolation: str,
) -> tuple[Codes, Numbers]:
    """The operations and magnitudes of one layer's slots, each (N, slots).

    Args:
        first: of `LAYER_DRAWS` draws.
        chosen: (N,) timm's names.
        happens: (N,) with which probability they happen.
        levels: (N,) planned levels.
    """
    numbers = draws.uniform(np.arange(first, first + LAYER_DRAWS))
    (_, is_on, sign, _), (radius, angle, kind, _) = numbers.transpose(2, 0, 1)
    levels = noise.levels(levels, np.stack([radius, angle]))
    signs = np.where(sign > 0.5, -1.0, 1.0)

    ops, magnitudes = np.zeros(len(levels), np.int8), np.zeros(len(levels), np.float32)
    for name in set(chosen.tolist()):
        here = (chosen == name) & (is_on <= happens)
        ops[here] = CODE[TIMM_OPS[name].op]
        magnitudes[here] = TIMM_OPS[name].magnitude(levels[here], signs[here], shape)

    if interpolation != "random":
        return ops[:, None], magnitudes[:, None]
    # the operation is in the slot of its interpolation; the other slot has none
    is_first = kind < 0.5
    columns = np.stack([is_first, ~is_first], axis=1)
    return ops[:, None] * columns, magnitudes[:, None] * columns
