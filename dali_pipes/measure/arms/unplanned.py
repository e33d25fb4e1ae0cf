"""What a trial needs from a loader, for arms that follow no plan."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

import torch

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.errors import OptionError
from dali_pipes.loader.batch import Batch
from dali_pipes.system.cuda import why_no_gpu


class UnplannedLoader(ABC):
    """Batches that no plan has chosen, epoch after epoch.

    Args:
        batches: of an epoch.
    """

    def __init__(self, batches: int):
        self._count, self._step = batches, 0
        self._stream: Iterator[Batch] | None = None

    @property
    @abstractmethod
    def decodes(self) -> str:
        """How images are decoded and why, in one line."""

    @abstractmethod
    def _batches(self) -> Iterator[Batch]:
        """Yields batches without end."""

    @abstractmethod
    def close(self) -> None:
        """Ends all threads and processes."""

    @property
    def batches_left(self) -> int:
        """Batches of this epoch that are still to come."""
        return self._count - self._step

    def __len__(self) -> int:
        """Batches of one epoch."""
        return self._count

    def __iter__(self) -> Iterator[Batch]:
        # the stream has no epochs: the next one begins where this one ends
        stream = self._stream = self._stream or self._batches()
        self._step = 0
        for step in range(1, self._count + 1):
            batch = next(stream)
            # counted before the batch is handed out; with the last one a whole epoch is left
            self._step = step % self._count
            yield batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def arrival_device(config: LoaderConfig) -> torch.device:
    """The device of a loader's batches: the current GPU, if there is one.

    Raises:
        OptionError: the loader needs a GPU, and there is none.
    """
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if config.needs_gpu:
        raise OptionError(
            type(config),
            f"device is gpu, but PyTorch sees no GPU here; PyTorch says: {why_no_gpu()}",
        )
    return torch.device("cpu")
