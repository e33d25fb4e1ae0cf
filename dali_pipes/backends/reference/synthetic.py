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
        self._images = noise(self._transform, self._batch_size, self._device)

    def explain(self) -> str:
        return "constant images; nothing is decoded"

    def stream(self, rows: Iterator[PlannedBatch]) -> Iterator[DecodedBatch]:
        for row in rows:
            yield DecodedBatch(self._images[: len(row)], ids_on(self._device, row))


def noise(transform: Transform, batch_size: int, device: torch.device) -> torch.Tensor:
    """(batch_size, 3, H, W) of the transform's dtype and memory format, always the same."""
    shape = (batch_size, 3, *transform.shape)
    steps = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images = steps if transform.dtype == "uint8" else steps.to(TORCH_DTYPES[transform.dtype]) / 128 - 1
    return images.to(device, memory_format=MEMORY_FORMATS[transform.memory_format])
