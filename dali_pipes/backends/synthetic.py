"""The ceiling: images that lie on the device already. Only ids and labels are new in each batch."""

from collections.abc import Iterator

import torch

from dali_pipes.backends.pixels import DTYPES, MEMORY_FORMATS
from dali_pipes.batch import Batch
from dali_pipes.config import Transform
from dali_pipes.plan import Rows


class SyntheticBackend:
    """Carries out a plan without reading a file: noise of the right shape, dtype and memory format, the same for every batch."""

    def __init__(self, transform: Transform, batch_size: int, device: torch.device):
        shape = (batch_size, 3, transform.size, transform.size)
        noise = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        images = noise if transform.dtype == "uint8" else noise.to(DTYPES[transform.dtype]) / 128 - 1
        self._images = images.to(device, memory_format=MEMORY_FORMATS[transform.memory_format])

    def stream(self, rows: Iterator[Rows]) -> Iterator[Batch]:
        device = self._images.device
        for row in rows:
            labels, ids = (torch.from_numpy(array) for array in (row.labels, row.ids))
            if device.type == "cuda":
                labels, ids = (tensor.pin_memory().to(device, non_blocking=True) for tensor in (labels, ids))
            yield Batch(self._images[: len(row)], labels, ids)

    def close(self) -> None:
        pass
