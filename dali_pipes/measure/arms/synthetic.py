"""The ceiling that no loader can exceed: images that are on the device already."""

from collections.abc import Iterator
from dataclasses import dataclass

from dali_pipes.backends.backend import Backend, Decoded, Description
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.needs import EVERYTHING, WIDE
from dali_pipes.measure.arms.noise import Noise
from dali_pipes.plan.plan import PlannedBatch


@dataclass(kw_only=True, slots=True)
class SyntheticConfig(LoaderConfig):
    """Constant images that are on the device already, with the plan's ids and labels: the ceiling
    no loader can exceed.
    """

    name = "synthetic"
    backend = "dali_pipes.measure.arms.synthetic:SyntheticBackend"


class SyntheticBackend(Backend):
    """The upper bound: a plan without reading a file. Only the ids change from batch to batch."""

    makes = EVERYTHING | {WIDE}  # the form of its images is the same with and without

    def prepare(self) -> None:
        self._noise = Noise(self.job.transform, self.job.batch_size, self.job.device)

    def describe(self) -> Description:
        return Description("constant images; nothing is decoded")

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Decoded]:
        return map(self._noise.of, planned)
