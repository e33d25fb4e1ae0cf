"""The batches of a user's DataLoader, as it is or as `from_torch` makes it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dali_pipes.adapters.lazy.convert import from_torch
from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.backends.torch.workers import end_workers
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.loader.batch import Batch
from dali_pipes.measure.arms.unplanned import UnplannedLoader, arrival_device
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.functions import import_function


class UsersLoader(UnplannedLoader):
    """The images of the DataLoader that a function makes, epoch after epoch. The transform is the
    DataLoader's own. The samples are not known, so all ids and labels are 0.

    Args:
        config: a DataLoaderConfig.
        manifest, batch_size: say how long an epoch is, if the DataLoader does not.
    """

    def __init__(
        self,
        manifest: Manifest | None,
        config: Any,
        transform: Transform | None,
        batch_size: int,
    ):
        loader = import_function(config.function)()
        self._loader = from_torch(loader, config.made_by) if config.made_by else loader
        try:
            batches = len(loader)
        except TypeError:  # such as an IterableDataset
            batches = -(-len(manifest) // batch_size) if manifest else 1
        super().__init__(batches)

        self._iterator: Any = None
        self._device = arrival_device(config)
        workers = f"{config.num_workers} worker{'' if config.num_workers == 1 else 's'}"
        self._name = f"the DataLoader of {config.function}, with {workers}"

    @property
    def decodes(self) -> str:
        if isinstance(self._loader, LazyLoader):
            return f"{self._name}: {'; '.join(self._loader.explain().splitlines())}"
        return self._name

    def _batches(self) -> Iterator[Batch]:
        # `close` ends the workers of the iterator that is in use
        while True:
            self._iterator = iter(self._loader)
            for batch in self._iterator:
                images = _images_of(batch).to(self._device, non_blocking=True)
                ids = torch.zeros(len(images), dtype=torch.int64, device=self._device)
                yield Batch(images, ids, ids)

    def close(self) -> None:
        if isinstance(self._loader, LazyLoader):
            self._loader.close()
        else:
            end_workers(self._iterator)
        self._iterator = None


def _images_of(batch: Any) -> torch.Tensor:
    """The first tensor of 4 dimensions in a batch, which may have any structure."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim == 4:
            return leaf
    raise ConfigError("the DataLoader's batches hold no tensor of images, (N, 3, H, W)")
