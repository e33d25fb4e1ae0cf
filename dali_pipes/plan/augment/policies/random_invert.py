"""Colours inverted."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dali_pipes.checks import check_number
from dali_pipes.options import option
from dali_pipes.plan.augment.operations import Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import Policy, choose_op
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class RandomInvert(Policy):
    """All values inverted, with probability `p`."""

    name: str = "RandomInvert"
    p: float = option(0.5, check_number, 0, 1)

    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Invert",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        return choose_op("Invert", np.zeros_like(happens), happens < self.p)
