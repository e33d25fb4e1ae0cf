"""A bench that measures nothing: every setting has a rate, and the clock goes on by what a trial
takes.
"""

import numpy as np
import pytest
from made_up import trial

import dali_pipes as dp
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.tools.tuning.config import TuneConfig
from dali_pipes.tools.tuning.search import Race, search
from dali_pipes.tools.tuning.settings import Setting


class MadeUp:
    """Measures a setting as `search` and `compare` have it done.

    Attributes:
        rate, cpu, memory: of a setting: images/s, CPU-s per 1,000 images, MiB.
        fails: what the process of a setting wrote before it died; None: it did not.
        drift: by how much the machine slows down with every trial.
        ran: phase, round and setting of each trial.
    """

    def __init__(self, noise=0.02, trial_s=10.0):
        self.rate, self.cpu, self.memory, self.fails = (
            lambda _: 1000.0,
            lambda _: 1.0,
            lambda _: 500.0,
            lambda _: None,
        )
        self.drift, self.now, self.ran, self.message = 0.0, 0.0, [], []
        self._noise, self._trial_s, self._random = noise, trial_s, np.random.default_rng(0)

    def __call__(self, turn, setting):
        self.now += self._trial_s
        self.ran.append((turn.phase, turn.number, setting))
        if wrote := self.fails(setting):
            raise ArmError(
                (f"arm {turn.arm}: its process ended with status 1; the last it wrote:\n  {wrote}"),
                wrote,
            )
        slower = (1 - self.drift) ** len(self.ran)
        rate = self.rate(setting) * slower * np.exp(self._noise * self._random.standard_normal())
        made = trial(turn.arm, turn.number, turn.phase, rate, self.cpu(setting))
        made["samples"][-1]["pss_mib"] = self.memory(setting)
        return made

    def search(self, others, default, **options):
        race = Race(default, others, options.get("seed", 0))
        search(config(**options), self, race, self.message.append, lambda: self.now)
        return race


def config(loader=None, **options):
    return TuneConfig(
        loader=loader or dp.TorchConfig(num_workers=1), transform=dp.TrainTransform(), **options
    )


def setting(workers, prefetch=2, batch_size=64):
    return Setting((("num_workers", workers), ("prefetch_factor", prefetch)), batch_size)


@pytest.fixture
def bench():
    return MadeUp()
