"""What `from_torch` makes of a user's DataLoader, as a training program."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from torch.utils.data import DataLoader

from dali_pipes.adapters.lazy.convert import from_torch
from dali_pipes.adapters.lazy.random_numbers import own_numbers
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.errors import ConfigError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.tools.diagnosis.measuring.training import Step
from dali_pipes.tools.diagnosis.programs.base import Feed, TrainingProgram
from dali_pipes.tools.diagnosis.programs.batches import count_items, put_on_device
from dali_pipes.tools.diagnosis.programs.epochs import Epochs


class ConvertedProgram(TrainingProgram):
    """What `from_torch` makes of a DataLoader.

    Raises:
        ConfigError: it makes no loader of it, or none of its pictures would wait.
    """

    # taken as DALI's on a GPU, with its default queue and one batch in work
    burst, in_flight = 1, DaliConfig(device="gpu").queue_depth + 1

    def __init__(self, loader: DataLoader, step: Step | None):
        self._loader, self._step, self.workers = loader, step, available_cpus()
        with suppress(TypeError):  # an IterableDataset may have no length
            self.epoch = len(loader)

        with own_numbers(True), from_torch(loader, seed=0, check=False) as lazy:
            next(iter(lazy), None)
            if not lazy.waited:
                raise ConfigError("none of its pictures would wait")

    @contextmanager
    def feed(self) -> Iterator[Feed]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what does not wait: here it is only measured
            with from_torch(self._loader) as loader:
                epochs = Epochs(loader)
                yield Feed(iter(epochs), lambda: epochs.at_start, put_on_device)

    def step(self) -> Step | None:
        return self._step

    def transfer_size(self) -> tuple[int, bool]:
        return 0, True  # its batches are on the device

    def count(self, batch: Any) -> int:
        return count_items(batch, self._loader.batch_size)
