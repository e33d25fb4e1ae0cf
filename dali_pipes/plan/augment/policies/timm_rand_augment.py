"""timm's RandAugment."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_choice, describe_value
from dali_pipes.errors import ConfigError
from dali_pipes.options import option
from dali_pipes.plan.augment.operations import Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import DRAWS, Policy
from dali_pipes.plan.augment.timm_ops import (
    INTERPOLATIONS,
    LAYER_DRAWS,
    LevelNoise,
    draw_layer,
    slots_of,
)
from dali_pipes.plan.philox import Draws

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
_LARGEST = {"m": 100, "n": DRAWS // LAYER_DRAWS, "mmax": 100, "inc": 1, "p": 1}


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


def check_fill(option: str, value: Any) -> tuple[int, ...]:
    """Returns the three numbers of a color as a tuple; YAML has only lists."""
    values = tuple(value) if isinstance(value, (list, tuple)) else ()
    if len(values) != 3 or not all(type(each) is int and 0 <= each <= 255 for each in values):
        raise ConfigError(
            f"{option} is {describe_value(value)}; it takes three whole numbers from 0 to 255"
        )
    return values


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
    interpolation: str = option("bicubic", check_choice, INTERPOLATIONS)
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
