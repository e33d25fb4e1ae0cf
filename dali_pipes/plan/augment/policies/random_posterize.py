"""Fewer bits for each value."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dali_pipes.checks import check_int, check_number
from dali_pipes.options import option
from dali_pipes.plan.augment.operations import Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import Policy, choose_op
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class RandomPosterize(Policy):
    """Only the highest bits of each value kept, with probability `p`.

    Attributes:
        bits: how many bits stay, of 8.
    """

    name: str = "RandomPosterize"
    bits: int = option(4, check_int, 0, 8)
    p: float = option(0.5, check_number, 0, 1)

    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Posterize",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        return choose_op("Posterize", np.full_like(happens, self.bits), happens < self.p)
