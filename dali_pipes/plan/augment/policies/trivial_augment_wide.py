"""TrivialAugment's wide space."""

from dataclasses import dataclass

from dali_pipes.checks import check_choice, check_int
from dali_pipes.options import option
from dali_pipes.plan.augment import operations
from dali_pipes.plan.augment.operations import RANDOM_CODES, RANDOM_OPS, Codes, Numbers, Slot
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
