"""What a loader yields, and what a backend must do to yield it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch

from dali_pipes.plan.philox import BatchDraws
from dali_pipes.plan.plan import PlannedBatch


@dataclass(frozen=True, slots=True)
class Batch:
    """N images on one device, ready to use on the current stream.

    Attributes:
        images: (N, 3, H, W), float32, float16, bfloat16 or uint8, contiguous or channels_last.
        labels: (N,) int64 class numbers; (N, C) float32 for several classes each, or mixed ones; (N,) or (N, K) float32 numbers.
        ids: (N,) int64 sample ids; `manifest.name(id)` names the file.
        columns: `manifest.columns` of these samples, (N,) or (N, K).
    """

    images: torch.Tensor
    labels: torch.Tensor
    ids: torch.Tensor
    columns: dict[str, torch.Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        shape, dtype = tuple(self.images.shape), str(self.images.dtype).removeprefix("torch.")
        labels = "labels" if self.labels.ndim == 1 else f"labels={tuple(self.labels.shape)}"
        columns = f", columns {', '.join(self.columns)}" if self.columns else ""
        return f"Batch(images={shape} {dtype} on {self.images.device}, {labels} and ids ({len(self)},){columns})"


# Makes another batch of one, on the current stream. It must not write into the tensors of the batch it is given: some loaders
# hand out the same images again. With a method `check(manifest)` it is asked, when a loader is built, whether it fits the images.
BatchTransform = Callable[[Batch, BatchDraws], Batch]


class Backend(Protocol):
    """One way to carry out a plan.

    Attributes:
        engine_mix: what makes the pixels, where that can change their last bits from one batch size to another; None: nothing does.
    """

    @property
    def engine_mix(self) -> str | None: ...

    def explain(self) -> str:
        """How images will be decoded and why, in one line."""
        ...

    def stream(self, rows: Iterator[PlannedBatch]) -> Iterator[Batch]:
        """Batches of exactly these rows in this order. Ends what an earlier call began."""
        ...

    def close(self) -> None:
        """Ends all threads and processes; harmless when called twice."""
        ...
