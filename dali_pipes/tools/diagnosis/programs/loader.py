"""A loader of dali_pipes, or what `from_torch` made, and a user's step as a training program."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.errors import ConfigError
from dali_pipes.loader.loader import Loader
from dali_pipes.system.cpus import available_cpus
from dali_pipes.tools.diagnosis.measuring.training import Step
from dali_pipes.tools.diagnosis.programs.base import Feed, TrainingProgram
from dali_pipes.tools.diagnosis.programs.batches import count_items, put_on_device
from dali_pipes.tools.diagnosis.programs.epochs import Epochs
from dali_pipes.tools.diagnosis.programs.step_calls import StepCalls


class LoaderProgram(TrainingProgram):
    """A loader of dali_pipes.

    The place of one with a plan in its epoch is kept. Its threads or workers are not known here;
    they are taken to be as many as the cores.
    """

    # taken as DALI's on a GPU, with its default queue and one batch in work
    burst, in_flight = 1, DaliConfig(device="gpu").queue_depth + 1

    def __init__(self, loader: Loader | LazyLoader, step: Step | None = None):
        self._loader, self._step, self.workers = loader, step, available_cpus()
        try:
            self.epoch = len(loader)
        except TypeError:
            raise ConfigError(
                "the IterableDataset of this loader has no length, so diagnose does not know where "
                "an epoch ends; give the data set a __len__, or pass on your own DataLoader"
            ) from None
        self.step_calls: StepCalls | None = None  # None: the calls of the step are not counted

        self.is_fetched = isinstance(loader, Loader) and loader.plan.manifest.is_fetched

    @contextmanager
    def feed(self) -> Iterator[Feed]:
        loader, epochs = self._loader, Epochs(self._loader)
        place = loader.state_dict() if isinstance(loader, Loader) else None
        try:
            yield Feed(iter(epochs), lambda: epochs.at_start, put_on_device)
        finally:
            epochs.close()
            if place is not None:
                loader.load_state_dict(place)

    def step(self) -> Step | None:
        return self._step

    def remarks(self) -> list[str]:
        # as if pinned: its batches are on the device already
        return self.step_calls.remarks(True) if self.step_calls else []

    def transfer_size(self) -> tuple[int, bool]:
        return 0, True  # its batches are on the device

    def count(self, batch: Any) -> int:
        return count_items(batch, self._loader.batch_size)
