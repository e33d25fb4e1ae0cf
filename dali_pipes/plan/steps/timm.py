"""timm's RandAugment, and the operations of timm's policies by timm's names
(timm/data/auto_augment.py).

`draw_layer` turns timm's operations and levels into ours.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_choice, check_fill, describe_value
from dali_pipes.errors import ConfigError
from dali_pipes.options import option
from dali_pipes.plan.draws import STEP_DRAWS, Draws
from dali_pipes.plan.steps.operations import CODE, FILTERS, Codes, Numbers, Slot
from dali_pipes.plan.steps.policies import Policy

Levels = NDArray[np.float64]
Fill = tuple[int, int, int]
TIMM_FILTERS = (*FILTERS[1:], "random")
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


GRAY = (128, 128, 128)  # timm's color around an image, if it knows no mean
_SAME = ("AutoContrast", "Equalize", "Invert", "Rotate")
_MOVES = ("ShearX", "ShearY", "TranslateXRel", "TranslateYRel")
_COLORS = ("Color", "Contrast", "Brightness", "Sharpness")
PLAIN = (*_SAME, "Posterize", "Solarize", "SolarizeAdd", *_COLORS, *_MOVES)
INCREASING = (
    *_SAME,
    *("PosterizeIncreasing", "SolarizeIncreasing", "SolarizeAdd"),
    *(f"{name}Increasing" for name in _COLORS),
    *_MOVES,
)
WEIGHTS = {
    "Rotate": 3.0,
    **dict.fromkeys(("ShearX", "ShearY"), 2.0),
    **dict.fromkeys(("TranslateXRel", "TranslateYRel"), 1.0),
    **dict.fromkeys(("ColorIncreasing", "SharpnessIncreasing", "AutoContrast"), 0.25),
    **dict.fromkeys(("SolarizeIncreasing", "SolarizeAdd", "ContrastIncreasing"), 0.05),
    **dict.fromkeys(("BrightnessIncreasing", "Equalize", "PosterizeIncreasing", "Invert"), 0.05),
}
_PART = re.compile(r"([a-z]+)([0-9.]+|inf)")
_LARGEST = {"m": 100, "n": STEP_DRAWS // LAYER_DRAWS, "mmax": 100, "inc": 1, "p": 1}


def parse_config(text: str) -> dict[str, float]:
    """The numbers of a string such as "rand-m9-mstd0.5-inc1", by their letters.

    Raises:
        ConfigError: it is none.
    """
    first, *parts = text.split("-")
    numbers: dict[str, float] = {"m": 10, "n": 2, "p": 0.5, "mstd": 0, "mmax": 10, "inc": 0}
    for part in parts:
        match = _PART.fullmatch(part)
        if part == "tweights":
            numbers["weights"] = 1
        elif not match or match[1] not in numbers:
            raise _refusal(text)
        else:
            numbers[match[1]] = float(match[2])

    too_large = [name for name, most in _LARGEST.items() if numbers[name] > most]
    whole = all(numbers[name] == int(numbers[name]) for name in ("m", "n", "mmax", "inc"))
    if first != "rand" or too_large or not whole or numbers["n"] < 1:
        raise _refusal(text)
    # as timm reads it
    numbers["mstd"] = np.inf if numbers["mstd"] > 100 else numbers["mstd"]
    return numbers


def _refusal(text: str) -> ConfigError:
    return ConfigError(
        f"config is {text!r}; it takes timm's strings such as 'rand-m9-n2-mstd0.5-inc1', of m, n "
        f"(up to {_LARGEST['n']}), p, mstd, mmax, inc and tweights"
    )


def check_config(option: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _refusal(describe_value(value))
    parse_config(value)
    return value


@dataclass(kw_only=True, slots=True)
class TimmRandAugment(Policy):
    """timm's `rand_augment_transform(config)`: `n` operations, each with probability `p`, at the
    level `m` or around it. Its operations are Pillow's.

    Attributes:
        config: timm's string.
        interpolation: of operations that move pixels; "random" is bilinear or bicubic, each time
            anew.
        fill: the color of what they have from outside the image; timm takes the mean of the images.
    """

    name: str = "TimmRandAugment"
    config: str = option("rand-m9-mstd0.5-inc1", check_config)
    interpolation: str = option("bicubic", check_choice, TIMM_FILTERS)
    fill: tuple[int, int, int] = option(GRAY, check_fill)

    @property
    def _names(self) -> tuple[str, ...]:
        numbers = parse_config(self.config)
        if "weights" in numbers:
            return tuple(WEIGHTS)
        return INCREASING if numbers["inc"] else PLAIN

    @property
    def slots(self) -> tuple[Slot, ...]:
        layer = slots_of(self._names, self.interpolation, self.fill)
        return layer * int(parse_config(self.config)["n"])

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        numbers = parse_config(self.config)
        count, noise = int(numbers["n"]), LevelNoise(numbers["mstd"], numbers["mmax"])
        places = draws.uniform(first + LAYER_DRAWS * np.arange(count))[0]
        names = np.array(self._names, object)
        chosen = self._choose(places) if "weights" in numbers else None

        layers = []
        for layer in range(count):
            place = (places[:, layer] * len(names)).astype(int) if chosen is None else chosen[layer]
            layers.append(
                draw_layer(
                    draws,
                    first + LAYER_DRAWS * layer,
                    shape,
                    names[place],
                    np.full(len(place), numbers["p"]),
                    np.full(len(place), numbers["m"]),
                    noise,
                    self.interpolation,
                )
            )
        return (
            np.concatenate([ops for ops, _ in layers], axis=1),
            np.concatenate([magnitudes for _, magnitudes in layers], axis=1).astype(np.float32),
        )

    def _choose(self, places: NDArray[np.float64]) -> list[NDArray[np.int64]]:
        """The operations of each layer, by their weights, no one twice."""
        left = np.tile(list(WEIGHTS.values()), (len(places), 1))
        layers, rows = [], np.arange(len(places))
        for layer in range(places.shape[1]):
            edges = left.cumsum(axis=1)
            chosen = (places[:, layer, None] * edges[:, -1:] >= edges).sum(axis=1)
            left[rows, chosen] = 0
            layers.append(chosen)
        return layers
