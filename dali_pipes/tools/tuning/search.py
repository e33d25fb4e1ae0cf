"""The search: as many settings as fit into the time and the limits, raced against each other and
the default.

`Race` decides which setting runs next and which ones drop out; it measures nothing. `search` runs a
race: it draws the settings, measures each trial, and drops those that fail or exceed a limit.
"""

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from dali_pipes.errors import ConfigError
from dali_pipes.measure.figures import arm_figures, by_rounds
from dali_pipes.measure.results import ArmFigures, Trial
from dali_pipes.measure.rounds import TrialKey, rounds
from dali_pipes.measure.stats import MIN_PAIRS, Ratio
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.system.progress import track
from dali_pipes.tools.tuning.config import TuneConfig
from dali_pipes.tools.tuning.settings import Setting

ROUNDS = 2  # rounds of each rung: an order and its reverse
# one trial of a setting; raises ArmError if its process failed
Run = Callable[[TrialKey, Setting], Trial]

# In this order: PyTorch and CUDA; DALI's allocators and nvJPEG; C++, Python and the kernel; a
# worker that was killed, or died of a full /dev/shm; a process that ended by SIGKILL, which the
# kernel's out-of-memory killer sends, or by SIGBUS.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|MemoryAllocation"
    r"|Can't allocate|Could not allocate|allocation failed|ALLOCATOR_FAILURE"
    r"|bad_alloc|MemoryError|Cannot allocate memory|unable to allocate"
    r"|killed by signal: (Killed|Bus error)|shared memory|/torch_.*No space left"
    r"|ended with SIG(KILL|BUS)\b",
    re.IGNORECASE,
)

_LIMITS = {  # limit: its figure, unit and format
    "max_cpus": ("cpus", "cores", ".2f"),
    "max_cpu_s_per_1000_images": ("cpu_s_per_1000_images", "CPU-s per 1,000 images", ".2f"),
    "max_memory_mib": ("peak_pss_mib", "MiB of host memory", ",.0f"),
    "max_gpu_memory_mib": ("gpu_memory_mib", "MiB of GPU memory", ",.0f"),
}


def ran_out_of_memory(error: ArmError) -> bool:
    return bool(_OUT_OF_MEMORY.search(f"{error}\n{error.output}"))


def limits(config: TuneConfig) -> dict[str, float | None]:
    return {limit: getattr(config, limit) for limit in _LIMITS}


def over_limit(config: TuneConfig, figures: ArmFigures) -> str | None:
    """Returns why a setting with these figures is discarded; None if it is within the limits.

    Raises:
        ConfigError: a limit is given for a figure that cannot be measured here.
    """
    for limit, most in limits(config).items():
        figure, unit, form = _LIMITS[limit]
        value = cast(dict[str, Any], figures)[figure]
        if most is not None and value is None:
            raise ConfigError(f"{limit}={most:g} cannot be kept: {unit} cannot be measured here")
        if most is not None and value > most:
            return f"{value:{form}} {unit}, more than {limit}={most:g}"
    return None


class Race:
    """Successive halving over settings: all run a rung of two rounds, the slower half drops out,
    until one is left.

    Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization
    (AISTATS 2016). The default takes part in every round: settings are ranked by their paired ratio
    to it, and a setting that is slower than it never wins. From `MIN_PAIRS` rounds on there are
    intervals, and settings that they cannot distinguish run no longer. The race measures nothing
    itself.

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
        """Yields the round and the setting of each trial.

        Each has to be followed by `add`, or by `drop` or `drop_as_large`.

        Args:
            in_time: whether there is time for one more trial; else the race ends.
        """
        for rung in itertools.count():
            runners = ([self.default] if self.default_runs else []) + self.left()
            for number, order in enumerate(
                rounds(runners, ROUNDS, self._seed + rung), ROUNDS * rung + 1
            ):
                for setting in order:
                    if not in_time():
                        return
                    # a setting may have dropped out since this rung was planned; a default over a
                    # limit runs on, since the others are compared with it
                    if setting not in self.out or (setting == self.default and self.default_runs):
                        yield number, setting

            if ROUNDS * (rung + 1) >= MIN_PAIRS:
                self._drop_what_is_noise()
            # of an odd number, the setting in the middle goes on
            left = self.left()
            self._drop_slower(left[-(-len(left) // 2) :], "slower")
            if len(self.left()) < 2:
                return

    def add(self, setting: Setting, trial: Trial) -> None:
        self.trials[setting].append(trial)

    def drop(self, setting: Setting, why: str) -> None:
        """Drops a setting that cannot be kept. If it is the default, the others are still compared
        with it.
        """
        self.out[setting] = why
        self._beaten.discard(setting)

    def drop_as_large(self, setting: Setting) -> None:
        """Drops a setting that ran out of memory, and all with as many images in flight or more.

        The default drops only itself.
        """
        self.drop(setting, "ran out of memory")
        self.default_runs &= setting != self.default
        # also those that were only slower, since `best` may come back to them
        for other in {*self.left(), *self._beaten}:
            if other.in_flight >= setting.in_flight:
                self.drop(other, f"no smaller than {setting}, which ran out of memory")

    def left(self) -> list[Setting]:
        """Returns the settings besides the default that are still in the race, the fastest first;
        those not measured yet are last.
        """
        return sorted(
            (setting for setting in self.others if setting not in self.out),
            key=self._speed,
            reverse=True,
        )

    def best(self) -> Setting | None:
        """Returns the fastest setting; the default unless another is faster. None if no setting can
        be kept.
        """
        if self.default not in self.out:
            return max([self.default, *self.left()], key=self._speed)
        # the default cannot be kept, but a setting that is out only for being slower can be
        return max(
            (setting for setting in self.left() or self._beaten if self.trials[setting]),
            key=self._speed,
            default=None,
        )

    def against_default(self, setting: Setting) -> Ratio | None:
        """Returns the setting's images/s against the default's in the same rounds; None before
        there is such a round.
        """
        return self._ratio(self.default, setting) if self.default_runs else None

    def _ratio(self, first: Setting, second: Setting) -> Ratio | None:
        together = {trial["round"] for trial in self.trials[first]} & {
            trial["round"] for trial in self.trials[second]
        }
        return (
            by_rounds(self.trials[first], self.trials[second], "images_per_s") if together else None
        )

    def _speed(self, setting: Setting) -> float:
        """Returns the speed against the default or, if that does not run, against the setting with
        the most trials.
        """
        reference = (
            self.default
            if self.default_runs
            else max(self.others, key=lambda setting: len(self.trials[setting]))
        )
        ratio = self._ratio(reference, setting)
        return ratio.estimate if ratio else 0.0

    def _drop_slower(self, settings: Sequence[Setting], why: str) -> None:
        self.out |= dict.fromkeys(settings, why)
        self._beaten |= {*settings}

    def _drop_what_is_noise(self) -> None:
        def are_faster(settings: Sequence[Setting], reference: Setting) -> bool:
            """Whether one of them is, beyond the interval."""
            ratios = [self._ratio(reference, setting) for setting in settings]
            return any(
                ratio is not None and ratio.low is not None and ratio.low > 1 for ratio in ratios
            )

        left = self.left()
        if self.default not in self.out and not are_faster(left, self.default):
            self._drop_slower(left, "not faster than the default beyond the noise")
        elif left and not any(are_faster(left[:1], other) for other in left[1:]):
            self._drop_slower(left[1:], f"as fast as {left[0]} within the noise")


def trials_of(others: int) -> int:
    """Returns how many trials a race of `others` and the default takes, if none drops out early."""
    trials = ROUNDS * (others + 1)
    while others > 2:
        others = -(-others // 2)
        trials += ROUNDS * (others + 1)
    return trials


def search(
    config: TuneConfig,
    run: Run,
    race: Race,
    announce: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Runs the race with as many of its settings as fit into `config.minutes`.

    The default's first trial shows how long a trial takes.

    Raises:
        ArmError: the default failed, and not because of memory.
        ConfigError: there is no time for a single setting besides the default.
    """
    start, count = clock(), 1
    # no other setting runs in round 0, so this trial is in no ratio
    _measure(config, run, race, race.default, 0)
    trial_s = clock() - start

    known = race.left()
    limited = bool(race.out) or any(limit is not None for limit in limits(config).values())
    # one trial of the time is spent
    race.others = _draw_settings(known, 60 * config.minutes / trial_s - 1, config.seed, limited)

    if known and not race.others:
        need = (trials_of(1) + 1) * trial_s / 60
        problem = f"minutes={config.minutes:g} is too short: a trial takes {trial_s:.0f} s here"
        raise ConfigError(f"{problem}, and a single setting {need:.1f} minutes")

    searched = f"{len(race.others)} of {len(known)} settings besides the default ({race.default})"
    compared = 3 * config.pairs * trial_s / 60
    announce(
        f"Searching {searched} for {config.minutes:g} minutes at most, then comparing for "
        f"about {compared:.0f}."
    )

    def in_time() -> bool:
        # the next trial takes as long as those before did on average
        spent = clock() - start
        return spent + spent / count <= 60 * config.minutes

    for number, setting in track(
        race.plan(in_time), lambda step: f"round {step[0]}: {step[1]}", trials_of(len(race.others))
    ):
        _measure(config, run, race, setting, number)
        count += 1


def _draw_settings(
    settings: Sequence[Setting], trials: float, seed: int, smallest: bool
) -> list[Setting]:
    """Returns as many random settings as fit into these trials, each number of threads (the first
    option) once before any is repeated.

    Args:
        smallest: begin with the smallest setting, the one most likely to be within the limits.
    """
    count = max(
        (count for count in range(1, len(settings) + 1) if trials_of(count) <= trials), default=0
    )

    shuffled = [settings[place] for place in np.random.default_rng(seed).permutation(len(settings))]
    if smallest:
        shuffled.sort(key=lambda setting: setting != min(settings, key=lambda one: one.size))

    seen, turns = Counter[Any](), dict[Setting, int]()
    for setting in shuffled:
        turns[setting] = seen[setting.options[0]]
        seen[setting.options[0]] += 1
    return sorted(shuffled, key=turns.__getitem__)[:count]


def _measure(config: TuneConfig, run: Run, race: Race, setting: Setting, number: int) -> None:
    try:
        # the name of the arm is a part of the trial's file name
        race.add(setting, run(TrialKey("search", number, str(setting).replace(" ", ",")), setting))
    except ArmError as error:
        if ran_out_of_memory(error):
            race.drop_as_large(setting)
        elif setting == race.default:
            raise
        else:
            race.drop(setting, f"failed: {' '.join(str(error).split())}")
        return

    if why := over_limit(config, arm_figures(race.trials[setting])):
        race.drop(setting, why)
