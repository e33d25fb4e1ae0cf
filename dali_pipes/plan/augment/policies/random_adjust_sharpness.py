"""Sharper or blurred edges."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dali_pipes.checks import check_number
from dali_pipes.options import option
from dali_pipes.plan.augment.operations import Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import Policy, choose_op
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class RandomAdjustSharpness(Policy):
    """Another sharpness, with probability `p`.

    Attributes:
        sharpness_factor: 0 blurs, 1 changes nothing, 2 doubles the sharpness.
    """

    name: str = "RandomAdjustSharpness"
    sharpness_factor: float = option(2.0, check_number, 0, 1000)
    p: float = option(0.5, check_number, 0, 1)

    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Sharpness",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        return choose_op(
            "Sharpness", np.full_like(happens, self.sharpness_factor - 1), happens < self.p
        )
