"""The upper bound: images that are already on the device. Only the ids are new in each batch."""

from collections.abc import Iterator

import torch

from dali_pipes.backends.base import Backend, DecodedBatch
from dali_pipes.backends.common.pixels import MEMORY_FORMATS, TORCH_DTYPES
from dali_pipes.backends.common.transfer import ids_on
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform


class SyntheticBackend(Backend):
    """Carries out a plan without reading a file: noise of the right shape, dtype and memory format, the same for every batch."""

    def _prepare(self) -> None:
        self._noise = Noise(self._transform, self._batch_size, self._device)

    def explain(self) -> str:
        return "constant images; nothing is decoded"

    def stream(self, rows: Iterator[PlannedBatch]) -> Iterator[DecodedBatch]:
        for row in rows:
            yield self._noise.of(row)


class Noise:
    """Batches of the transform's views, dtype and memory format, always of the same noise."""

    def __init__(self, transform: Transform, batch_size: int, device: torch.device):
        self._device = device
        self._groups = [noise(group[0], batch_size * len(group), device) for group in transform.groups]

    def of(self, rows: PlannedBatch) -> DecodedBatch:
        parts = zip(self._groups, rows.groups, strict=True)
        groups = [images[: len(rows) * len(views), :, : views[0].shape[0], : views[0].shape[1]] for images, views in parts]
        return DecodedBatch.of(groups, ids_on(self._device, rows))


def noise(transform: Transform, count: int, device: torch.device) -> torch.Tensor:
    """(count, 3, H, W) of the transform's largest shape."""
    shape = (count, 3, *transform.shape)
    steps = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images = steps if transform.dtype == "uint8" else steps.to(TORCH_DTYPES[transform.dtype]) / 128 - 1
    return images.to(device, memory_format=MEMORY_FORMATS[transform.memory_format])
