"""The blur."""

from dataclasses import dataclass

from dali_pipes.checks import check_int, check_number, check_ordered_pair
from dali_pipes.errors import OptionError
from dali_pipes.options import check_options, option
from dali_pipes.plan.augment.operations import Codes, Numbers, Slot
from dali_pipes.plan.augment.policies.base import Policy, choose_op
from dali_pipes.plan.philox import Draws


@dataclass(kw_only=True, slots=True)
class GaussianBlur(Policy):
    """A blur of random strength, with probability `p`.

    Attributes:
        kernel_size: in pixels, odd.
        sigma: the standard deviation is drawn between these, in pixels.
    """

    name: str = "GaussianBlur"
    # twice LARGEST_SIDE; RandomTransform compares it with the images
    kernel_size: int = option(23, check_int, 1, 2**17)
    sigma: tuple[float, float] = option((0.1, 2.0), check_ordered_pair)
    p: float = option(1.0, check_number, 0, 1)

    def __post_init__(self) -> None:
        check_options(self)
        if self.kernel_size % 2 == 0:
            raise OptionError(type(self), f"kernel_size is {self.kernel_size}; it must be odd")

    @property
    def slots(self) -> tuple[Slot, ...]:
        return (Slot(("GaussianBlur",), kernel_size=self.kernel_size),)

    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        strength, happens, _, _ = draws.uniform(first)
        low, high = self.sigma
        return choose_op("GaussianBlur", low + (high - low) * strength, happens < self.p)
