"""Backends for comparisons that decode nothing themselves.

They deliver images that are already on the device, or those of a user's own DataLoader.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dali_pipes.backends.base import Backend, DecodedBatch, Delivery
from dali_pipes.backends.common.dataloader import end_workers
from dali_pipes.backends.common.pixels import MEMORY_FORMATS, TORCH_DTYPES
from dali_pipes.backends.common.transfer import ids_on
from dali_pipes.errors import ConfigError
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.functions import named_function


class SyntheticBackend(Backend):
    """The upper bound: a plan without reading a file. Only the ids change from batch to batch."""

    def _prepare(self) -> None:
        self._noise = Noise(self._transform, self._batch_size, self._device)

    def explain(self) -> str:
        return "constant images; nothing is decoded"

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Delivery]:
        return ((each, self._noise.of(each)) for each in planned)


class Noise:
    """Batches of the transform's views, dtype and memory format, always of the same noise."""

    def __init__(self, transform: Transform, batch_size: int, device: torch.device):
        self._device = device
        self._groups = [
            _noise(group[0], batch_size * len(group), device) for group in transform.groups
        ]

    def of(self, planned: PlannedBatch) -> DecodedBatch:
        parts = zip(self._groups, planned.groups, strict=True)
        groups = [
            images[: len(planned) * len(views), :, : views[0].shape[0], : views[0].shape[1]]
            for images, views in parts
        ]
        return DecodedBatch.of(groups, ids_on(self._device, planned))


def _noise(transform: Transform, count: int, device: torch.device) -> torch.Tensor:
    """(count, 3, H, W) noise of the transform's largest shape."""
    shape = (count, 3, *transform.shape)
    # a separate generator: the program's own random numbers stay as they are
    steps = torch.randint(
        0,
        256,
        shape,
        generator=torch.Generator("cpu").manual_seed(0),
        dtype=torch.uint8,
        device="cpu",
    )

    images = (
        steps if transform.dtype == "uint8" else steps.to(TORCH_DTYPES[transform.dtype]) / 128 - 1
    )
    return images.to(device, memory_format=MEMORY_FORMATS[transform.memory_format])


class DataLoaderBackend(Backend):
    """The images of the DataLoader that a function makes, epoch after epoch.

    Neither the plan nor its transform is used.
    """

    def _prepare(self) -> None:
        self._loader = named_function(self._config.function)()
        self._iterator: Any = None

    def explain(self) -> str:
        return f"the DataLoader of {self._config.function}, with {self._config.num_workers} workers"

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Delivery]:
        while True:
            self._iterator = iter(self._loader)
            for batch in self._iterator:
                # a batch may have any structure: its images are the first tensor of 4 dimensions
                images = next(
                    (
                        each
                        for each in tree_leaves(batch)
                        if isinstance(each, torch.Tensor) and each.ndim == 4
                    ),
                    None,
                )
                if images is None:
                    raise ConfigError(
                        "the DataLoader's batches hold no tensor of images, (N, 3, H, W)"
                    )

                images = images.to(self._device, non_blocking=True)
                yield (
                    None,
                    # the samples are not known
                    DecodedBatch(images, torch.zeros(len(images), dtype=torch.int64, device="cpu")),
                )

    def close(self) -> None:
        end_workers(self._iterator)
        self._iterator = None
