"""Successive halving over settings, with every comparison made within rounds of trials. It measures nothing itself."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from dali_pipes.measure.figures import by_rounds
from dali_pipes.measure.protocol import rounds
from dali_pipes.measure.results import Trial
from dali_pipes.measure.stats import LEAST_PAIRS, Ratio
from dali_pipes.tools.tuning.settings import Setting

ROUNDS = 2  # of each rung: an order and its reverse


class Race:
    """All settings run a rung of two rounds, the slower half drops out, and so on until one is left besides the default.

    Successive halving: Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization (AISTATS
    2016). The default takes part in every round: settings are ranked by their paired ratio to it, and a setting that is slower than
    it never wins. From `LEAST_PAIRS` rounds on there are intervals, and settings that they cannot distinguish run no longer.

    Attributes:
        others: the settings besides the default; may be fewer from `plan` on.
        trials: the trials of each setting.
        out: why a setting is no longer in the race.
        default_runs: whether the default still runs: it did not run out of memory.
    """

    def __init__(self, default: Setting, others: Sequence[Setting], seed: int):
        self.default, self.others, self._seed = default, list(others), seed
        self.trials: dict[Setting, list[Trial]] = {setting: [] for setting in (default, *others)}
        self.out: dict[Setting, str] = {}
        self._beaten: set[Setting] = set()  # settings that are out only because others are faster
        self.default_runs = True

    def plan(self, in_time: Callable[[], bool]) -> Iterator[tuple[int, Setting]]:
        """Round and setting of each trial. Each has to be followed by `add`, or by `drop` or `drop_as_large`.

        Args:
            in_time: whether there is time for one more trial; else the race ends.
        """
        for rung in itertools.count():
            runners = ([self.default] if self.default_runs else []) + self.left()
            for number, order in enumerate(rounds(runners, ROUNDS, self._seed + rung), ROUNDS * rung + 1):
                for setting in order:
                    if not in_time():
                        return
                    if setting not in self.out or (setting == self.default and self.default_runs):
                        yield number, setting
            self._end_rung(ROUNDS * (rung + 1))
            if len(self.left()) < 2:
                return

    def add(self, setting: Setting, trial: Trial) -> None:
        self.trials[setting].append(trial)

    def drop(self, setting: Setting, why: str) -> None:
        """A setting that cannot be kept. If it is the default, the others are still compared with it."""
        self.out[setting] = why
        self._beaten.discard(setting)

    def drop_as_large(self, setting: Setting) -> None:
        """A setting ran out of memory: drops it and all with as many images in flight or more; the default drops only itself."""
        self.drop(setting, "ran out of memory")
        self.default_runs &= setting != self.default
        for other in {*self.left(), *self._beaten}:
            if other.in_flight >= setting.in_flight:
                self.drop(other, f"no smaller than {setting}, which ran out of memory")

    def left(self) -> list[Setting]:
        """The settings besides the default that are still in the race, the fastest first; those not measured yet are last."""
        left = [setting for setting in self.others if setting not in self.out]
        return sorted(left, key=self._speed, reverse=True)

    def best(self) -> Setting | None:
        """The fastest; the default unless another is faster. None: no setting can be kept."""
        if self.default not in self.out:
            return max([self.default, *self.left()], key=self._speed)
        return max((setting for setting in self.left() or self._beaten if self.trials[setting]), key=self._speed, default=None)

    def against_default(self, setting: Setting) -> Ratio | None:
        """Its images/s against the default's in the same rounds; None before there is such a round."""
        return self._ratio(self.default, setting) if self.default_runs else None

    def _ratio(self, first: Setting, second: Setting) -> Ratio | None:
        together = {trial["round"] for trial in self.trials[first]} & {trial["round"] for trial in self.trials[second]}
        return by_rounds(self.trials[first], self.trials[second], "images_per_s") if together else None

    def _speed(self, setting: Setting) -> float:
        """Against the default or, if that does not run, against the setting with the most trials."""
        reference = self.default if self.default_runs else max(self.others, key=lambda each: len(self.trials[each]))
        ratio = self._ratio(reference, setting)
        return ratio.estimate if ratio else 0.0

    def _end_rung(self, count: int) -> None:
        if count >= LEAST_PAIRS:
            self._drop_what_is_noise()
        left = self.left()
        for setting in left[-(-len(left) // 2) :]:
            self._beat(setting, "slower")

    def _beat(self, setting: Setting, why: str) -> None:
        self.out[setting] = why
        self._beaten.add(setting)

    def _drop_what_is_noise(self) -> None:
        left = self.left()
        if self.default not in self.out and not any(_leaves_out_one(self._ratio(self.default, each)) for each in left):
            for setting in left:
                self._beat(setting, "not faster than the default beyond the noise")
        elif left and not any(_leaves_out_one(self._ratio(each, left[0])) for each in left[1:]):
            for setting in left[1:]:
                self._beat(setting, f"as fast as {left[0]} within the noise")


def _leaves_out_one(ratio: Ratio | None) -> bool:
    """Whether the second is faster, beyond the interval."""
    return ratio is not None and ratio.low is not None and ratio.low > 1


def trials_of(others: int) -> int:
    """How many trials a race of `others` and the default takes, if none drops out early."""
    trials = ROUNDS * (others + 1)
    while others > 2:
        others = -(-others // 2)
        trials += ROUNDS * (others + 1)
    return trials
