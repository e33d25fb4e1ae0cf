"""The order of the trials: rounds of all arms, so that a machine that drifts favors none."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from dali_pipes.measure.stats import MIN_PAIRS
from dali_pipes.system.progress import track

Arm = TypeVar("Arm")


class TrialKey(NamedTuple):
    """Names one trial of a run.

    Attributes:
        phase: "round", "control" or "workers".
        number: the number of its round, from 1; in phase "workers" the number of workers or
            threads.
        arm: the arm that runs.
    """

    phase: str
    number: int
    arm: str


def list_trials(
    arms: Sequence[str],
    baseline: str,
    pairs: int,
    seed: int,
    begin: Callable[[int], bool] = lambda number: True,
) -> Iterator[TrialKey]:
    """Yields the trials of all rounds, with a progress bar.

    From five pairs on, the baseline runs once more in each round: the control.

    Args:
        begin: is called with the number of each round before it, and tells whether there is time
            for it; if not, the rounds end.
    """
    trials = [("round", arm) for arm in arms] + (
        [("control", baseline)] if pairs >= MIN_PAIRS else []
    )

    # lazily, since `begin` has to be asked when the rounds before have ended
    orders = itertools.takewhile(
        lambda round_: begin(round_[0]), enumerate(rounds(trials, pairs, seed), 1)
    )

    plan = (TrialKey(phase, number, arm) for number, order in orders for phase, arm in order)
    return track(
        plan, lambda key: f"{key.phase} {key.number} of {pairs}: {key.arm}", pairs * len(trials)
    )


def rounds(arms: Sequence[Arm], count: int, seed: int) -> list[list[Arm]]:
    """Returns the order of the arms in each round: a random one, its reverse (ABBA), a new one ….

    So a steady change over two rounds, such as a machine that grows warm, affects all arms equally.
    """
    # orders come in pairs, so there may be one too many
    random = np.random.default_rng(seed)
    orders: list[list[Arm]] = []
    while len(orders) < count:
        order = [arms[place] for place in random.permutation(len(arms))]
        orders += [order, order[::-1]]
    return orders[:count]
