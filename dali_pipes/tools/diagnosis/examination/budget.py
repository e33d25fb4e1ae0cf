"""The time that an examination may take, and what it measures in it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

PARTS = ("model", "loader", "together")  # of a round; see `Round`
Announce = Callable[[str], None]  # is called with a text before each step


@dataclass(frozen=True, slots=True)
class ProbeBudget:
    """The time to spend: rounds, minimum seconds of each span, and pairs of runs with and without
    the first fix.

    Attributes:
        limit_s: seconds after which no further round and no further fix is begun; one round is
            always measured.
    """

    rounds: int = 3
    seconds: float = 3.0
    verify_pairs: int = 0
    cold: bool = True
    limit_s: float = math.inf

    @property
    def steps(self) -> int:
        """About how many steps `examine` announces."""
        # the first batches, the rounds, three things measured once, about four fixes, the check
        return 1 + len(PARTS) * self.rounds + 3 + 4 + 2 * self.verify_pairs
