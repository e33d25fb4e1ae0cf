"""What all policies have in common.

A policy is a dataclass of options that fills slots with operations. Each policy of a list has
`DRAWS` draw numbers of each sample for itself.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.checks import check_choice
from dali_pipes.options import Options, check_options, option
from dali_pipes.plan.augment import operations
from dali_pipes.plan.augment.operations import CODE, Codes, Numbers, Slot
from dali_pipes.plan.philox import Draws

DRAWS = 16  # draw numbers reserved for each policy
INTERPOLATIONS = ("nearest", "bilinear")
# whose histograms Equalize makes, and the operation that does it
EQUALIZE = {"opencv": "Equalize", "torchvision": "EqualizeInSteps"}


@dataclass(kw_only=True, slots=True)
class Policy(Options, ABC):
    """One way to draw operations."""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def colors(self) -> str:
        """What of it only colors have, which does nothing to an image of one channel, for messages;
        "": nothing.
        """
        return ""

    @property
    @abstractmethod
    def slots(self) -> tuple[Slot, ...]:
        """The slots that this policy fills."""

    @abstractmethod
    def draw(self, draws: Draws, first: int, shape: tuple[int, int]) -> tuple[Codes, Numbers]:
        """Operations and magnitudes, each (N, slots), for images of this height and width.

        It uses the draws from `first` on.
        """


def sign_magnitudes(ops: Codes, magnitudes: Numbers, sign: NDArray[np.float64]) -> Numbers:
    """The magnitudes, negated half of the time for operations that have a direction.

    `sign` are random numbers in [0, 1).
    """
    return np.where(operations.SIGNED[ops] & (sign <= 0.5), -magnitudes, magnitudes)


def choose_op(
    op: str, magnitudes: NDArray[np.float64], happens: NDArray[np.bool_]
) -> tuple[Codes, Numbers]:
    """One slot: `op` with these magnitudes where it happens, and elsewhere nothing."""
    return np.where(happens, CODE[op], 0).astype(np.int8)[:, None], magnitudes.astype(np.float32)[
        :, None
    ]


def equalize_option() -> Any:
    """The option of policies that equalize: OpenCV's way, which is in DALI's graph, or
    torchvision's.
    """
    return option("opencv", check_choice, tuple(EQUALIZE))


def ops_with(equalize: str, ops: tuple[str, ...]) -> tuple[str, ...]:
    """These operations, with that of the option `equalize` for Equalize."""
    return tuple(EQUALIZE[equalize] if op == "Equalize" else op for op in ops)


def codes_with(equalize: str, ops: Codes) -> Codes:
    """As `ops_with`, for codes of operations."""
    chosen = np.int8(CODE[EQUALIZE[equalize]])
    return np.where(ops == CODE["Equalize"], chosen, ops)
