"""Gray in three channels."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dali_pipes.checks import check_number
from dali_pipes.options import option
from dali_pipes.plan.augment.operations import Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import Policy, choose_op
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class RandomGrayscale(Policy):
    """Gray in three channels, with probability `p`."""

    name: str = "RandomGrayscale"
    p: float = option(0.1, check_number, 0, 1)

    colors: ClassVar[str] = "RandomGrayscale"
    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Color",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        # -1 makes the factor 0: nothing of the colour is left
        happens, *_ = draws.uniform(first)
        return choose_op("Color", np.full_like(happens, -1), happens < self.p)
