"""The ceiling that no loader can exceed: images that are on the device already."""

from collections.abc import Iterator
from dataclasses import dataclass

from dali_pipes.backends.base import EVERYTHING, Backend, Delivery
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.measure.arms.noise import Noise
from dali_pipes.plan.plan import PlannedBatch


@dataclass(kw_only=True, slots=True)
class SyntheticConfig(LoaderConfig):
    """Constant images that are on the device already, with the plan's ids and labels: the ceiling
    no loader can exceed.
    """


class SyntheticBackend(Backend):
    """The upper bound: a plan without reading a file. Only the ids change from batch to batch."""

    carries_out = EVERYTHING  # the form of its images is the same with and without

    def _prepare(self) -> None:
        self._noise = Noise(self._transform, self._batch_size, self._device)

    def explain(self) -> str:
        return "constant images; nothing is decoded"

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Delivery]:
        return ((batch, self._noise.of(batch)) for batch in planned)
