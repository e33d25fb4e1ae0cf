"""Decoding alone: the least that a loader on the CPU can cost."""

from collections.abc import Iterator

from nvidia.dali import Pipeline

from dali_pipes.backends.base import EVERYTHING, Delivery
from dali_pipes.backends.common.in_work import InWork
from dali_pipes.backends.dali.backend import DaliBackend, regions_of
from dali_pipes.measure.arms.noise import Noise


class DecodingBackend(DaliBackend):
    """Reads and decodes the planned images as `DaliBackend` does on the CPU, then delivers noise.

    No loader that decodes these images on the CPU can do with less.
    """

    carries_out = EVERYTHING

    def _prepare(self) -> None:
        super()._prepare()
        self._noise = Noise(self._transform, self._batch_size, self._device)

    def explain(self) -> str:
        return (
            f"DALI on the CPU decodes {self.decoding}; the images are dropped, and the batches "
            "are constant"
        )

    def _finish_regions(self, pipeline: Pipeline, in_work: InWork) -> Iterator[Delivery]:
        # the regions are decoded when they arrive, and are dropped here
        for number, _ in regions_of(pipeline):
            planned = in_work.take(number)
            yield planned, self._noise.of(planned)
