"""What a loader yields, and what a backend must do to yield it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from dali_pipes.plan import Rows


@dataclass(frozen=True, slots=True)
class Batch:
    """N images on one device, ready to use on the current stream.

    Attributes:
        images: (N, 3, H, W), float32, float16 or uint8, contiguous or channels_last.
        labels: (N,) int64 class numbers.
        ids: (N,) int64 sample ids; `manifest.name(id)` names the file.
    """

    images: torch.Tensor
    labels: torch.Tensor
    ids: torch.Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        shape, dtype = tuple(self.images.shape), str(self.images.dtype).removeprefix("torch.")
        return f"Batch(images={shape} {dtype} on {self.images.device}, labels and ids ({len(self)},))"


class Backend(Protocol):
    """One way to carry out a plan."""

    def stream(self, rows: Iterator[Rows]) -> Iterator[Batch]:
        """Batches of exactly these rows in this order. Ends what an earlier call began."""
        ...

    def close(self) -> None:
        """Ends all threads and processes; harmless when called twice."""
        ...
