"""Statistics of noisy measurements: paired ratios with intervals, claims, and steady rates.

`paired_ratio` compares two arms over all rounds; `claim` says what may be concluded from it, given
the control. docs/method.md links the simulations behind the constants.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dali_pipes.measure.results import Interval

CONFIDENCE = 0.95
MIN_PAIRS = 5  # with fewer pairs, intervals cover the true ratio less often than they say
# from six pairs on, their range contains the true median in 97 of 100 runs, whatever the noise
RANGE_PAIRS = 6
STEADY_WITHIN = 0.1  # of the median of the last rates
# without restarts the control is one draw of how far two starts differ, and another may be larger:
# its distance from 1 counts twice (docs/method.md links the simulation)
SUSPENDED_DRAWS = 2
_RESAMPLES = 10_000  # all 3,125 of five pairs; of six there are 46,656


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two arms over all rounds.

    Attributes:
        estimate: the geometric mean of the paired ratios.
        low, high: its 95 % interval; None with fewer than five pairs.
    """

    estimate: float
    low: float | None = None
    high: float | None = None

    @property
    def noise(self) -> float | None:
        """How far the interval reaches from 1, as a factor of at least 1; None without an interval.

        Of an arm against itself, this is the noise.
        """
        if self.low is None or self.high is None:
            return None
        return max(self.high, 1 / self.low, 1.0)

    def to_dict(self) -> Interval:
        return {"estimate": self.estimate, "low": self.low, "high": self.high}

    def contains_one(self) -> bool:
        return contains_one(self.low, self.high)


def contains_one(low: float | None, high: float | None) -> bool:
    """Whether there is an interval and it contains 1."""
    return low is not None and high is not None and low <= 1 <= high


def paired_ratio(first: Sequence[float], second: Sequence[float]) -> Ratio:
    """The geometric mean of second / first over all rounds, with its interval.

    The arguments hold one figure for each round, in the same order, so anything that slows down
    both trials of a round cancels out.

    The interval is the studentized bootstrap (bootstrap-t) over the logarithms of the pairs: Efron
    and Tibshirani, An Introduction to the Bootstrap (1993), 12.5. The percentile bootstrap is too
    narrow for a few pairs: with five normally distributed pairs it covers the true ratio 84 times
    in 100, the bootstrap-t 94 times. But a single disturbed pair makes the bootstrap-t far wider
    than all pairs together, so from six pairs on it ends where the farthest pairs are.
    """
    # the mean of logarithms is the geometric mean, which is the same whichever arm is the baseline
    logs = np.log(np.asarray(second, float)) - np.log(np.asarray(first, float))
    n, mean = len(logs), float(logs.mean())
    if n < MIN_PAIRS:
        return Ratio(float(np.exp(mean)))

    # bootstrap-t: how far the mean of each resample is off, in its own standard errors
    error = logs.std(ddof=1) / np.sqrt(n)
    samples = logs[_resamples(n)]
    errors = samples.std(axis=1, ddof=1) / np.sqrt(n)
    scattered = errors > 1e-12  # a resample of one pair alone has no spread to divide by
    studentized = (samples.mean(axis=1)[scattered] - mean) / errors[scattered]
    if not len(studentized):
        return Ratio(*[float(np.exp(mean))] * 3)

    # the bootstrap-t turns the quantiles around: the upper one gives the lower end
    tail = (1 - CONFIDENCE) / 2
    low, high = mean - error * np.quantile(studentized, [1 - tail, tail])
    if n >= RANGE_PAIRS:
        low, high = max(low, logs.min()), min(high, logs.max())

    return Ratio(*(float(np.exp(log)) for log in (mean, low, high)))


@cache
def _resamples(n: int) -> NDArray[np.int64]:
    """All resamples of n pairs, (resamples, n) int64; a random choice of them if there are many."""
    # a fixed choice, so that the same trials give the same interval
    if n**n <= _RESAMPLES:
        return np.array(list(itertools.product(range(n), repeat=n)))
    return np.random.default_rng(0).integers(0, n, (_RESAMPLES, n))


def claim(ratio: Ratio, control: Ratio | None, restarts: bool = True) -> str:
    """What may be claimed about a ratio.

    "more" and "less" need an interval that excludes 1 even if all of it is moved towards 1 by as
    much as the baseline may differ from itself (`threshold`). So a control that is off, or wide,
    voids small differences only, and whatever one control allows, every control that reaches less
    far from 1 allows too. A difference that is voided is "untrustworthy" if the control itself does
    not contain 1, else there is "no difference shown".

    Args:
        control: the ratio of the baseline to itself, of the same rounds; None: there is none.
        restarts: whether every trial was a new process.

    Returns:
        "more", "less", "no difference shown", "untrustworthy" or "no interval".
    """
    factor = threshold(control, restarts)
    if ratio.low is None or ratio.high is None or control is None or factor is None:
        return "no interval"

    if ratio.low > factor:
        return "more"
    if ratio.high < 1 / factor:
        return "less"
    return "no difference shown" if control.contains_one() else "untrustworthy"


def threshold(control: Ratio | None, restarts: bool = True) -> float | None:
    """The factor, at least 1, that a difference has to exceed to be claimed.

    It is the farthest end of the control's interval; None: nothing can be claimed. Trials of one
    suspended process share its start. How far starts differ is in no interval over the rounds, and
    the control is one example of it, so there the distance from 1 counts twice.
    """
    if control is None or control.noise is None:
        return None
    return control.noise if restarts else control.noise**SUSPENDED_DRAWS


def is_steady(rates: Sequence[float]) -> bool:
    """Whether the last three rates differ by at most 10 % of their median."""
    last = rates[-3:]
    return len(last) == 3 and max(last) - min(last) <= STEADY_WITHIN * float(np.median(last))
