"""Decoding alone, on the CPU: what no loader of these images that decodes there can do without."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from dali_pipes.backends.base import DecodedBatch
from dali_pipes.backends.dali.backend import DaliBackend, windows_of
from dali_pipes.backends.reference.synthetic import Noise
from dali_pipes.plan.plan import PlannedBatch


class DecodingBackend(DaliBackend):
    """Reads and decodes the planned images as `DaliBackend` does on the CPU, drops them, and delivers noise."""

    def _prepare(self) -> None:
        super()._prepare()
        self._noise = Noise(self._transform, self._batch_size, self._device)

    def explain(self) -> str:
        return f"DALI on the CPU decodes {self.decoding}; the images are dropped, and the batches are constant"

    def _finished(self, pipeline: Any, rows: deque[PlannedBatch]) -> Iterator[DecodedBatch]:
        for _ in windows_of(pipeline):
            yield self._noise.of(rows.popleft())
