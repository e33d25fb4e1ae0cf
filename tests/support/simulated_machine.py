"""Machines that nobody owns: what the trials of arms with known speeds would measure there, and
what the tools then claim.

The order of the trials, the figures and the claims are those of the package; only the measuring is
made up.
"""

from itertools import count

import numpy as np
from made_up import trial

import dali_pipes as dp
from dali_pipes.measure.figures import result_figures
from dali_pipes.measure.rounds import list_trials
from dali_pipes.tools.tuning.config import TuneConfig
from dali_pipes.tools.tuning.search import Race, search
from dali_pipes.tools.tuning.settings import Setting
from dali_pipes.tools.tuning.verdict import compare, verdict, winner_of

KINDS = ("quiet", "noisy", "drifting")
GAINS = (1.0, 1.03, 1.1, 1.84)
PAIRS = 6
DEFAULT, FASTER, EQUAL, SLOWER = (
    Setting((("num_workers", workers),), 64) for workers in (1, 2, 3, 4)
)


class Machine:
    """The pace of one run's machine, trial after trial; 1 is undisturbed.

    quiet: 1 % from trial to trial. noisy: 4 %, and one trial in 20 takes 1.3 × as long. drifting: 1
    %, while it loses 30 % of its speed as it grows warm, most of it early, and another program
    takes a fifth of the rest from some trial on.

    Args:
        trials: about how many trials the run has.
    """

    def __init__(self, kind: str, seed: int, trials: int = 3 * PAIRS):
        self._kind, self._random, self._trials, self._number = (
            kind,
            np.random.default_rng(seed),
            trials,
            count(),
        )
        self._joined_by_another = self._random.uniform(0, trials)

    def pace(self) -> float:
        number, noise = next(self._number), self._random.standard_normal()
        if self._kind == "quiet":
            return float(np.exp(0.01 * noise))
        if self._kind == "noisy":
            return float(np.exp(0.04 * noise) / (1.3 if self._random.random() < 0.05 else 1))
        warm = 1 - 0.3 * (1 - np.exp(-3 * number / self._trials))
        return float(np.exp(0.01 * noise) * warm * (0.8 if number > self._joined_by_another else 1))


def benchmark_claims(kind: str, gain: float, seed: int) -> str:
    """What a benchmark claims of an arm that is `gain` times as fast as its baseline."""
    machine, speeds = Machine(kind, seed), {"baseline": 1000.0, "arm": 1000.0 * gain}
    done = [
        trial(turn.arm, turn.number, turn.phase, rate=speeds[turn.arm] * machine.pace())
        for turn in list_trials(list(speeds), "baseline", PAIRS, seed)
    ]
    compared = result_figures(done, list(speeds), "baseline")["arms"]["arm"]["ratio"]
    return compared["images_per_s"]["claim"]


def tune_claims(kind: str, gain: float, seed: int) -> str:
    """What `tune` ends with, after its search and its comparison: "more" if it keeps another
    setting than the default.

    Of three others one is `gain` times as fast as the default, one is equal, and one is 3 % slower.
    """
    config = TuneConfig(
        loader=dp.TorchConfig(num_workers=1), transform=dp.TrainTransform(), pairs=PAIRS, seed=seed
    )
    machine, speeds = (
        Machine(kind, seed, 40),
        {DEFAULT: 1.0, FASTER: gain, EQUAL: 1.0, SLOWER: 0.97},
    )

    def run(turn, setting):
        return trial(
            turn.arm, turn.number, turn.phase, rate=1000 * speeds[setting] * machine.pace()
        )

    race = Race(DEFAULT, [FASTER, EQUAL, SLOWER], seed)
    clock = count(step=5)
    search(config, run, race, lambda _: None, lambda: next(clock))
    winner = winner_of(race)
    compared = compare(run, DEFAULT, winner, PAIRS, seed) if winner != DEFAULT else None
    kept, _ = verdict(config, race, winner, compared)
    if kept == DEFAULT:
        return "no difference shown"
    return "more" if speeds[kept] > 1 else "wrong"


TOOLS = {"benchmark": benchmark_claims, "tune": tune_claims}


def right_and_wrong(tool: str, kind: str, gain: float, runs: int) -> tuple[int, int]:
    """In how many runs a true gain was claimed, and in how many something that is not true."""
    claimed = [TOOLS[tool](kind, gain, seed) for seed in range(runs)]
    gains = claimed.count("more")
    false = claimed.count("less") + claimed.count("wrong")
    return (gains, false) if gain > 1 else (0, false + gains)
