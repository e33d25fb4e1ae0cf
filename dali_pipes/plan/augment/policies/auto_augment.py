"""AutoAugment, as it was learned for ImageNet."""

from dataclasses import dataclass

import numpy as np

from dali_pipes.checks import check_choice
from dali_pipes.options import option
from dali_pipes.plan.augment import operations
from dali_pipes.plan.augment.operations import Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import (
    INTERPOLATIONS,
    Policy,
    codes_with,
    equalize_option,
    ops_with,
    sign_magnitudes,
)
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class AutoAugment(Policy):
    """One of 25 learned pairs of operations: Cubuk et al., "AutoAugment" (CVPR 2019), those of
    ImageNet.

    Attributes:
        equalize: how Equalize flattens a histogram, "opencv" or "torchvision"
            (docs/augmentation.md).
    """

    name: str = "AutoAugment"
    interpolation: str = option("nearest", check_choice, INTERPOLATIONS)
    equalize: str = equalize_option()

    @property
    def slots(self) -> tuple[Slot, ...]:
        places = zip(*operations.IMAGENET_PAIRS, strict=True)
        return tuple(
            Slot(
                ops_with(self.equalize, tuple(sorted({op for op, _, _ in place}))),
                self.interpolation,
            )
            for place in places
        )

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        place, *_ = draws.uniform(first)
        # a draw for each of the two operations; torchvision compares with <= too
        happens, sign, _, _ = draws.uniform(np.arange(first + 1, first + 3))
        pair = (place * len(operations.IMAGENET_PAIRS)).astype(int)
        ops = np.where(
            happens <= operations.PAIR_PROBABILITIES[pair], operations.PAIR_CODES[pair], 0
        ).astype(np.int8)
        magnitudes = operations.classic_space(10, shape)[ops, operations.PAIR_BINS[pair]]
        return codes_with(self.equalize, ops), sign_magnitudes(ops, magnitudes, sign)
