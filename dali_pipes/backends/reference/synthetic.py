"""The upper bound: images that are already on the device. Only ids and labels are new in each batch."""

from collections.abc import Iterator
from typing import Any

import torch

from dali_pipes.backends.base import Backend, Batch
from dali_pipes.backends.common.pixels import MEMORY_FORMATS, TORCH_DTYPES
from dali_pipes.backends.config import SyntheticConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform


class SyntheticBackend(Backend):
    """Carries out a plan without reading a file: noise of the right shape, dtype and memory format, the same for every batch."""

    def __init__(
        self, manifest: Manifest, transform: Transform, config: SyntheticConfig, batch_size: int, device: torch.device, *_: Any
    ):
        shape = (batch_size, 3, transform.size, transform.size)
        noise = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        images = noise if transform.dtype == "uint8" else noise.to(TORCH_DTYPES[transform.dtype]) / 128 - 1
        self._images = images.to(device, memory_format=MEMORY_FORMATS[transform.memory_format])

    def explain(self) -> str:
        return "constant images; nothing is decoded"

    def stream(self, rows: Iterator[PlannedBatch]) -> Iterator[Batch]:
        for row in rows:
            yield Batch(self._images[: len(row)], *on_device(row, self._images.device))


def on_device(rows: PlannedBatch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels and ids."""
    labels, ids = torch.from_numpy(rows.labels), torch.from_numpy(rows.ids)
    if device.type == "cpu":
        return labels, ids
    return labels.pin_memory().to(device, non_blocking=True), ids.pin_memory().to(device, non_blocking=True)
