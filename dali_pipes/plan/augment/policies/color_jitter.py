"""Brightness, contrast, saturation and hue."""

from dataclasses import dataclass

import numpy as np

from dali_pipes.checks import check_number
from dali_pipes.errors import ChoiceError
from dali_pipes.options import check_options, option
from dali_pipes.plan.augment.operations import CODE, Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import Policy
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class ColorJitter(Policy):
    """Brightness, contrast, saturation and hue in random order, with probability `p`.

    Attributes:
        brightness, contrast, saturation: the factor is drawn from [max(0, 1 - value), 1 + value].
        hue: the shift is drawn from [-hue, hue], at most 0.5, half the circle.
    """

    name: str = "ColorJitter"
    brightness: float = option(0.0, check_number, 0, 1000)
    contrast: float = option(0.0, check_number, 0, 1000)
    saturation: float = option(0.0, check_number, 0, 1000)
    hue: float = option(0.0, check_number, 0, 0.5)
    p: float = option(1.0, check_number, 0, 1)

    def __post_init__(self) -> None:
        check_options(self)
        if not self._parts():
            raise ChoiceError(
                ColorJitter, "changes nothing; set brightness, contrast, saturation or hue"
            )

    @property
    def colors(self) -> str:
        parts = [name for name in ("saturation", "hue") if getattr(self, name)]
        return f"{self.name} with {' and '.join(parts)}" if parts else ""

    def _parts(self) -> dict[str, float]:
        parts = {
            "Brightness": self.brightness,
            "Contrast": self.contrast,
            "Color": self.saturation,
            "Hue": self.hue,
        }
        return {op: value for op, value in parts.items() if value}

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot(tuple(self._parts())),) * len(self._parts())

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        # a draw has four numbers, one for each part; where parts are off, some are not used
        shuffle, strength, (happens, *_) = (
            draws.uniform(first),
            draws.uniform(first + 1),
            draws.uniform(first + 2),
        )

        codes, magnitudes = [], []
        for share, (op, value) in zip(strength, self._parts().items(), strict=False):
            # a magnitude is added to a factor of 1, which must not become negative; hues have both
            # signs
            low = -value if op == "Hue" else max(-1.0, -value)
            codes.append(np.where(happens < self.p, CODE[op], 0))
            magnitudes.append(low + (value - low) * share)

        # the order of the operations: that of four random numbers
        order = shuffle[: len(codes)].argsort(axis=0).T
        return (
            np.take_along_axis(np.stack(codes, axis=1), order, axis=1).astype(np.int8),
            np.take_along_axis(np.stack(magnitudes, axis=1), order, axis=1).astype(np.float32),
        )
