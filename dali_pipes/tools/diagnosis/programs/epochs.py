"""A loader, epoch after epoch, as a feed needs it."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from dali_pipes.backends.torch.workers import end_workers
from dali_pipes.errors import ConfigError


class Epochs:
    """A DataLoader, or a loader like it, epoch after epoch."""

    def __init__(self, loader: Any, name: str = "DataLoader"):
        self._loader, self._name = loader, name
        self._iterator: Any = None
        self._taken = 0

    @property
    def at_start(self) -> bool:
        """Whether the next batch is the first of an epoch.

        For an iterable dataset without a length, only the very first batch is known to be.
        """
        try:
            return self._taken % len(self._loader) == 0
        except TypeError:
            return self._taken == 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            before = self._taken
            self._iterator = iter(self._loader)
            for batch in self._iterator:
                self._taken += 1
                yield batch

            # else it would go round for ever
            if self._taken == before:
                raise ConfigError(
                    f"the {self._name} yields no batch; check its dataset, batch_size and drop_last"
                )

    def close(self) -> None:
        end_workers(self._iterator)
        if isinstance(self._loader, DataLoader):
            self._loader._iterator = None  # it kept its persistent workers, which have ended
        self._iterator = None
