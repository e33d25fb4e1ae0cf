"""A PyTorch DataLoader of the user's own, as an arm."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dali_pipes.backends.config import MAX_COUNT, Concurrency, LoaderConfig
from dali_pipes.backends.torch.workers import end_workers
from dali_pipes.checks import check_min
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.loader.batch import Batch
from dali_pipes.measure.arms.unplanned import UnplannedLoader, arrival_device
from dali_pipes.options import option
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.functions import import_function


@dataclass(kw_only=True, slots=True)
class DataLoaderConfig(LoaderConfig):
    """A PyTorch DataLoader of your own, outside the plan: for comparisons.

    Attributes:
        function: module:function, which takes no arguments and returns it; also a module in the
            working directory.
        num_workers: those it has.
    """

    name = "dataloader"
    backend = "dali_pipes.measure.arms.users_dataloader:UsersLoader"

    function: str = ""
    num_workers: int = option(0, check_min, 0, MAX_COUNT)

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency(max(1, self.num_workers), max(1, self.num_workers), 2 * self.num_workers)


class UsersLoader(UnplannedLoader):
    """The images of the DataLoader that a function makes, epoch after epoch. The transform is the
    DataLoader's own. The samples are not known, so all ids and labels are 0.
    """

    def __init__(
        self, manifest: Manifest, config: DataLoaderConfig, transform: Transform, batch_size: int
    ):
        super().__init__(len(manifest), batch_size)
        self._loader = import_function(config.function)()
        self._iterator: Any = None
        self._device = arrival_device(config)
        workers = f"{config.num_workers} worker{'' if config.num_workers == 1 else 's'}"
        self._decodes = f"the DataLoader of {config.function}, with {workers}"

    @property
    def decodes(self) -> str:
        return self._decodes

    def _batches(self) -> Iterator[Batch]:
        # `close` ends the workers of the iterator that is in use
        while True:
            self._iterator = iter(self._loader)
            for batch in self._iterator:
                images = _images_of(batch).to(self._device, non_blocking=True)
                ids = torch.zeros(len(images), dtype=torch.int64, device=self._device)
                yield Batch(images, ids, ids)

    def close(self) -> None:
        end_workers(self._iterator)
        self._iterator = None


def _images_of(batch: Any) -> torch.Tensor:
    """The first tensor of 4 dimensions in a batch, which may have any structure."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim == 4:
            return leaf
    raise ConfigError("the DataLoader's batches hold no tensor of images, (N, 3, H, W)")
