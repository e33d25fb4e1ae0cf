"""A user's own DataLoader, outside the plan: for comparisons, not training."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dali_pipes.backends.base import Backend, DecodedBatch
from dali_pipes.errors import ConfigError
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.system.functions import named_function


class DataLoaderBackend(Backend):
    """The images of the DataLoader that a function makes, epoch after epoch; neither the plan's rows nor its transform are used."""

    def _prepare(self) -> None:
        self._loader = named_function(self._config.function)()
        self._iterator: Any = None

    def explain(self) -> str:
        return f"the DataLoader of {self._config.function}, with {self._config.num_workers} workers"

    def stream(self, rows: Iterator[PlannedBatch]) -> Iterator[DecodedBatch]:
        while True:
            self._iterator = iter(self._loader)
            for batch in self._iterator:
                images = _images(batch).to(self._device, non_blocking=True)
                yield DecodedBatch(images, torch.zeros(len(images), dtype=torch.int64))

    def close(self) -> None:
        if hasattr(self._iterator, "_shutdown_workers"):
            self._iterator._shutdown_workers()
        self._iterator = None


def _images(batch: Any) -> torch.Tensor:
    found = next((each for each in tree_leaves(batch) if isinstance(each, torch.Tensor) and each.ndim == 4), None)
    if found is None:
        raise ConfigError("the DataLoader's batches hold no tensor of images, (N, 3, H, W)")
    return found
