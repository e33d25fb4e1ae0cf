"""Policies that draw operations from a table: TrivialAugmentWide, RandAugment and AutoAugment."""

from dataclasses import dataclass

import numpy as np

from dali_pipes.checks import check_choice, check_int
from dali_pipes.errors import OptionError
from dali_pipes.options import check_options, option
from dali_pipes.plan.augment import operations
from dali_pipes.plan.augment.operations import RANDOM_CODES, RANDOM_OPS, Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import (
    DRAWS,
    INTERPOLATIONS,
    Policy,
    codes_with,
    equalize_option,
    ops_with,
    sign_magnitudes,
)
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class TrivialAugmentWide(Policy):
    """One operation at any of the magnitudes: Müller and Hutter, "TrivialAugment" (ICCV 2021), the
    wide space.

    Attributes:
        equalize: how Equalize flattens a histogram, "opencv" or "torchvision"
            (docs/augmentation.md).
    """

    name: str = "TrivialAugmentWide"
    num_magnitude_bins: int = option(31, check_int, 2, 2**16)
    interpolation: str = option("nearest", check_choice, INTERPOLATIONS)
    equalize: str = equalize_option()

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot(ops_with(self.equalize, RANDOM_OPS[1:]), self.interpolation),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        place, bin, sign, _ = draws.uniform(first)
        # torchvision's constants of the wide space
        magnitudes = operations.space(
            self.num_magnitude_bins,
            shear=0.99,
            shift=(32.0, 32.0),
            degrees=135.0,
            blend=0.99,
            bits=6,
        )

        ops = RANDOM_CODES[(place * len(RANDOM_CODES)).astype(int)]
        magnitudes = sign_magnitudes(
            ops, magnitudes[ops, (bin * self.num_magnitude_bins).astype(int)], sign
        )
        return codes_with(self.equalize, ops)[:, None], magnitudes[:, None]


@dataclass(kw_only=True, slots=True)
class RandAugment(Policy):
    """`num_ops` operations, all at one magnitude: Cubuk et al., "RandAugment" (CVPR Workshops
    2020).

    Attributes:
        equalize: how Equalize flattens a histogram, "opencv" or "torchvision"
            (docs/augmentation.md).
    """

    name: str = "RandAugment"
    # each operation takes one of the policy's draws
    num_ops: int = option(2, check_int, 1, DRAWS)
    magnitude: int = option(9, check_int, 0, 2**16)
    num_magnitude_bins: int = option(31, check_int, 2, 2**16)
    interpolation: str = option("nearest", check_choice, INTERPOLATIONS)
    equalize: str = equalize_option()

    def __post_init__(self) -> None:
        check_options(self)
        if self.magnitude >= self.num_magnitude_bins:
            most = self.num_magnitude_bins - 1
            raise OptionError(
                type(self),
                f"magnitude is {self.magnitude}; it takes whole numbers from 0 to {most}",
            )

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot(ops_with(self.equalize, RANDOM_OPS[1:]), self.interpolation),) * self.num_ops

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        place, sign, _, _ = draws.uniform(np.arange(first, first + self.num_ops))
        ops = RANDOM_CODES[(place * len(RANDOM_CODES)).astype(int)]
        magnitudes = operations.classic_space(self.num_magnitude_bins, shape)[ops, self.magnitude]
        return codes_with(self.equalize, ops), sign_magnitudes(ops, magnitudes, sign)


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
