"""Histograms flattened."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dali_pipes.checks import check_number
from dali_pipes.options import option
from dali_pipes.plan.augment.operations import Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import Policy, choose_op
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class RandomEqualize(Policy):
    """The histogram of each channel flattened, with probability `p`, as OpenCV does it
    (docs/augmentation.md).
    """

    name: str = "RandomEqualize"
    p: float = option(0.5, check_number, 0, 1)

    slots: ClassVar[tuple[Slot, ...]] = (Slot(("Equalize",)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        return choose_op("Equalize", np.zeros_like(happens), happens < self.p)
