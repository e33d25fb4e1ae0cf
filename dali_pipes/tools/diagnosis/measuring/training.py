"""What trains, as a generator of batches.

Whoever drives it trains on each batch that it yields, once, and then resumes it. The driver is
`drive` with a function that trains, or the training loop of a program that is run as it is, which
takes these batches for its loader's. So everything happens in the thread that trains, where a
loader's worker processes have to be started.
"""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
Step = Callable[[Any], object]
# yields batches to train on; is sent True if the loop was left in that step and has begun anew;
# returns what was found out
Training = Generator[Any, bool | None, T]


class LoopEnded(BaseException):
    """Thrown into what trains: the program's loop trains on no further batch.

    It is not an Exception, so that a probe that catches errors does not catch it.

    Args:
        is_late: whether no time is left even for what needs no training.
    """

    def __init__(self, is_late: bool):
        super().__init__(is_late)
        self.is_late = is_late


def drive(work: Training[T], step: Step) -> T:
    """Trains on each batch that `work` yields, and returns its value."""
    while True:
        try:
            batch = next(work)
        except StopIteration as end:
            return end.value
        step(batch)
