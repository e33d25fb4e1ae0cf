"""The rotation about the centre."""

from dataclasses import dataclass

import numpy as np

from dali_pipes.checks import check_choice, check_number
from dali_pipes.options import option
from dali_pipes.plan.augment.operations import Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import INTERPOLATIONS, Policy, choose_op
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class RandomRotation(Policy):
    """A rotation about the centre by up to `degrees` either way; areas from outside the image are
    black.
    """

    name: str = "RandomRotation"
    degrees: float = option(15.0, check_number, 0, 180)
    interpolation: str = option("nearest", check_choice, INTERPOLATIONS)

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot(("Rotate",), self.interpolation),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        angle, *_ = draws.uniform(first)
        return choose_op("Rotate", self.degrees * (2 * angle - 1), np.ones(len(angle), bool))
