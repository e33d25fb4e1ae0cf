"""Values from a threshold on are inverted."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dali_pipes.checks import check_int, check_number
from dali_pipes.options import option
from dali_pipes.plan.augment.operations import Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import Policy, choose_op
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class RandomSolarize(Policy):
    """All values from a threshold on inverted, with probability `p`, as in BYOL (Grill et al.,
    NeurIPS 2020, appendix B).

    Attributes:
        threshold: from 0 to 256, of values up to 255.
    """

    name: str = "RandomSolarize"
    threshold: int = option(128, check_int, 0, 256)
    p: float = option(0.5, check_number, 0, 1)

    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Solarize",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        # halfway between two pixel values, so that no rounding moves the threshold onto another one
        between = (self.threshold - 0.5) / 255
        return choose_op("Solarize", np.full_like(happens, between), happens < self.p)
