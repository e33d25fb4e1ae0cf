"""Histograms flattened."""

from dataclasses import dataclass

import numpy as np

from dali_pipes.checks import check_number
from dali_pipes.options import option
from dali_pipes.plan.augment.operations import Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import EQUALIZE, Policy, choose_op, equalize_option
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class RandomEqualize(Policy):
    """The histogram of each channel flattened, with probability `p`.

    Attributes:
        equalize: how, "opencv" or "torchvision" (docs/augmentation.md).
    """

    name: str = "RandomEqualize"
    p: float = option(0.5, check_number, 0, 1)
    equalize: str = equalize_option()

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot((EQUALIZE[self.equalize],)),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        happens, *_ = draws.uniform(first)
        return choose_op(EQUALIZE[self.equalize], np.zeros_like(happens), happens < self.p)
