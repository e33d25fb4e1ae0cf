"""Statistics of noisy measurements: paired ratios with their intervals, claims, and when a rate is
steady.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dali_pipes.measure.results import Interval

CONFIDENCE = 0.95
LEAST_PAIRS = 5  # with fewer, intervals have less than their nominal coverage
# from here on the range of the pairs holds their true median in 97 of 100 runs, whatever disturbs
# them
RANGE_PAIRS = 6
STEADY_WITHIN = 0.1
# without restarts the control is a single draw of how far two starts differ: docs/method.md has the
# simulation
SUSPENDED_DRAWS = 2
_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two arms over all rounds.

    Attributes:
        estimate: the geometric mean of the paired ratios.
        low, high: its 95 % interval; None with fewer than five pairs, which give none.
    """

    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def noise(self) -> float | None:
        """How far the interval reaches from 1, as a factor of at least 1. For an arm against
        itself: the noise.
        """
        if self.low is None or self.high is None:
            return None
        return max(self.high, 1 / self.low, 1.0)

    def to_dict(self) -> Interval:
        return {"estimate": self.estimate, "low": self.low, "high": self.high}

    def holds_one(self) -> bool:
        return holds_one(self.low, self.high)


def holds_one(low: float | None, high: float | None) -> bool:
    """Whether there is an interval, and 1 is in it."""
    return low is not None and high is not None and low <= 1 <= high


def paired_ratio(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """second / first, trial by trial of the same round.

    Anything that slows down both trials of a pair cancels out. The interval is the studentized
    bootstrap (bootstrap-t) over the logarithms of the pairs: Efron and Tibshirani, An Introduction
    to the Bootstrap (1993), 12.5. The percentile bootstrap is too narrow for a few pairs: with five
    normally distributed pairs it covers the true ratio 84 times in 100, this one 94 times. But a
    single disturbed pair makes it far wider than all pairs together, so from six pairs on it ends
    where they end.
    """
    logs = np.log(np.asarray(second, float)) - np.log(np.asarray(first, float))
    n, mean = len(logs), float(logs.mean())
    if n < LEAST_PAIRS:
        return Ratio(float(np.exp(mean)))
    error = logs.std(ddof=1) / np.sqrt(n)
    samples = logs[_resamples(n)]
    errors = samples.std(axis=1, ddof=1) / np.sqrt(n)
    scattered = errors > 1e-12  # resamples of a single pair say nothing about the spread
    studentized = (samples.mean(axis=1)[scattered] - mean) / errors[scattered]
    if not len(studentized):
        return Ratio(*[float(np.exp(mean))] * 3)
    tail = (1 - CONFIDENCE) / 2
    low, high = mean - error * np.quantile(studentized, [1 - tail, tail])
    if n >= RANGE_PAIRS:
        low, high = max(low, logs.min()), min(high, logs.max())
    return Ratio(*(float(np.exp(each)) for each in (mean, low, high)))


@cache
def _resamples(n: int) -> NDArray[np.int64]:
    """All resamples of n pairs, or a fixed sample of them if there are many."""
    if n**n <= _RESAMPLES:
        return np.array(list(itertools.product(range(n), repeat=n)))
    return np.random.default_rng(0).integers(0, n, (_RESAMPLES, n))


def claim(ratio: Ratio, control: Ratio | None, restarts: bool = True) -> str:
    """The claim about a ratio: "more", "less", "no difference shown", "untrustworthy" or "no
    interval".

    "more" and "less" need an interval that excludes 1 even if all of it is moved towards 1 by as
    much as the baseline may differ from itself (`threshold`). So a control that is off, or wide,
    voids small differences and no large ones, and whatever one control lets pass, every control
    that reaches less far from 1 lets pass too. A difference that it voids is "untrustworthy" where
    the control does not hold 1 itself.

    Args:
        control: the ratio of the baseline to itself, of the same rounds; None: there is none.
        restarts: whether every trial was a new process.
    """
    least = threshold(control, restarts)
    if ratio.low is None or ratio.high is None or control is None or least is None:
        return "no interval"
    if ratio.low > least:
        return "more"
    if ratio.high < 1 / least:
        return "less"
    return "no difference shown" if control.holds_one() else "untrustworthy"


def threshold(control: Ratio | None, restarts: bool = True) -> float | None:
    """The factor, at least 1, that a difference has to exceed to be claimed; None: nothing can be
    claimed.

    The farthest end of the control's interval. Trials of one suspended process share how it
    started, which no interval over the rounds contains and of which the control shows one example:
    there the distance counts twice.
    """
    if control is None or control.noise is None:
        return None
    return control.noise if restarts else control.noise**SUSPENDED_DRAWS


def is_steady(rates: Sequence[float]) -> bool:
    """Whether the last three rates are within 10 % of each other."""
    last = rates[-3:]
    return len(last) == 3 and max(last) - min(last) <= STEADY_WITHIN * float(np.median(last))
