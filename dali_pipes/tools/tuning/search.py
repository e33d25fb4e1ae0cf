"""The search: as many settings as fit into the time, raced against each other and the default."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dali_pipes.errors import ConfigError
from dali_pipes.measure.figures import arm_figures
from dali_pipes.measure.protocol import Turn
from dali_pipes.measure.results import Trial
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.system.progress import track
from dali_pipes.tools.tuning.config import TuneConfig
from dali_pipes.tools.tuning.limits import limits, over_limit, ran_out_of_memory
from dali_pipes.tools.tuning.race import Race, trials_of
from dali_pipes.tools.tuning.settings import Setting

Run = Callable[[Turn, Setting], Trial]  # one trial of a setting; raises ArmError if its process failed


def search(
    config: TuneConfig, run: Run, race: Race, announce: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> None:
    """Runs the race with as many of its settings as fit into `config.minutes`. The default's first trial shows how long one takes.

    Raises:
        ArmError: the default failed, and not because of memory.
        ConfigError: there is no time for a single setting besides the default.
    """
    start, count = clock(), 1
    _measure(config, run, race, race.default, 0)
    trial_s = clock() - start
    known = race.left()
    limited = bool(race.out) or any(limit is not None for limit in limits(config).values())
    race.others = _drawn(known, 60 * config.minutes / trial_s - 1, config.seed, limited)
    if known and not race.others:
        need = (trials_of(1) + 1) * trial_s / 60
        problem = f"minutes={config.minutes:g} is too short: a trial takes {trial_s:.0f} s here"
        raise ConfigError(f"{problem}, and a single setting {need:.1f} minutes")
    searched = f"{len(race.others)} of {len(known)} settings besides the default ({race.default})"
    compared = 3 * config.pairs * trial_s / 60
    announce(f"Searching {searched} for {config.minutes:g} minutes at most, then comparing for about {compared:.0f}.")

    def in_time() -> bool:
        spent = clock() - start
        return spent + spent / count <= 60 * config.minutes

    for number, setting in track(race.plan(in_time), lambda each: f"round {each[0]}: {each[1]}", trials_of(len(race.others))):
        _measure(config, run, race, setting, number)
        count += 1


def _drawn(settings: Sequence[Setting], trials: float, seed: int, smallest: bool) -> list[Setting]:
    """As many random settings as fit into these trials, each number of threads (the first option) once before any is repeated.

    Args:
        smallest: begin with the smallest setting, the one most likely to be within the limits.
    """
    count = max((count for count in range(1, len(settings) + 1) if trials_of(count) <= trials), default=0)
    shuffled = [settings[place] for place in np.random.default_rng(seed).permutation(len(settings))]
    if smallest:
        shuffled.sort(key=lambda each: each != min(settings, key=lambda one: one.size))
    seen, turns = Counter[Any](), dict[Setting, int]()
    for setting in shuffled:
        turns[setting] = seen[setting.options[0]]
        seen[setting.options[0]] += 1
    return sorted(shuffled, key=turns.__getitem__)[:count]


def _measure(config: TuneConfig, run: Run, race: Race, setting: Setting, number: int) -> None:
    try:
        race.add(setting, run(Turn("search", number, str(setting).replace(" ", ",")), setting))
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
