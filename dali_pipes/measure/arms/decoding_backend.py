"""Decoding alone: the least that a loader on the CPU can cost."""

from collections.abc import Iterator

from nvidia.dali import Pipeline

from dali_pipes.backends.backend import Decoded, Description, InWork
from dali_pipes.backends.dali.backend import DaliBackend, regions_of
from dali_pipes.measure.arms.noise import Noise


class DecodingBackend(DaliBackend):
    """Reads and decodes the planned images as `DaliBackend` does on the CPU, then delivers noise.

    No loader that decodes these images on the CPU can do with less.
    """

    def prepare(self) -> None:
        super().prepare()
        self._noise = Noise(self.job.transform, self.job.batch_size, self.job.device)

    def describe(self) -> Description:
        return Description(
            f"DALI on the CPU decodes {self.decoding}; the images are dropped, and the batches "
            "are constant"
        )

    def _finish_regions(self, pipeline: Pipeline, in_work: InWork) -> Iterator[Decoded]:
        # the regions are decoded when they arrive, and are dropped here
        for number, _ in regions_of(pipeline):
            yield self._noise.of(in_work.take(number))
