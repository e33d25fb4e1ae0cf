"""Machines that nobody owns: what the trials of arms with known speeds would measure there, and
what a benchmark then claims.

The order of the trials, the figures and the claims are those of the package; only the measuring is
made up.
"""

from itertools import count

import numpy as np
from made_up import trial

from dali_pipes.measure.figures import result_figures
from dali_pipes.measure.rounds import list_trials

KINDS = ("quiet", "noisy", "drifting")
GAINS = (1.0, 1.03, 1.1, 1.84)
PAIRS = 6
TRIALS = 3 * PAIRS  # of two arms and the control


class Machine:
    """The pace of one run's machine, trial after trial; 1 is undisturbed.

    quiet: 1 % from trial to trial. noisy: 4 %, and one trial in 20 takes 1.3 × as long. drifting: 1
    %, while it loses 30 % of its speed as it grows warm, most of it early, and another program
    takes a fifth of the rest from some trial on.
    """

    def __init__(self, kind: str, seed: int):
        self._kind, self._random, self._number = kind, np.random.default_rng(seed), count()
        self._joined_by_another = self._random.uniform(0, TRIALS)

    def pace(self) -> float:
        number, noise = next(self._number), self._random.standard_normal()
        if self._kind == "quiet":
            return float(np.exp(0.01 * noise))
        if self._kind == "noisy":
            return float(np.exp(0.04 * noise) / (1.3 if self._random.random() < 0.05 else 1))
        warm = 1 - 0.3 * (1 - np.exp(-3 * number / TRIALS))
        return float(np.exp(0.01 * noise) * warm * (0.8 if number > self._joined_by_another else 1))


def claim_of(kind: str, gain: float, seed: int) -> str:
    """What a benchmark claims of an arm that is `gain` times as fast as its baseline."""
    machine, speeds = Machine(kind, seed), {"baseline": 1000.0, "arm": 1000.0 * gain}
    done = [
        trial(turn.arm, turn.number, turn.phase, rate=speeds[turn.arm] * machine.pace())
        for turn in list_trials(list(speeds), "baseline", PAIRS, seed)
    ]
    compared = result_figures(done, list(speeds), "baseline")["arms"]["arm"]["ratio"]
    return compared["images_per_s"]["claim"]


def right_and_wrong(kind: str, gain: float, runs: int) -> tuple[int, int]:
    """In how many runs a true gain was claimed, and in how many something that is not true."""
    claimed = [claim_of(kind, gain, seed) for seed in range(runs)]
    gains = claimed.count("more")
    false = claimed.count("less")
    return (gains, false) if gain > 1 else (0, false + gains)
