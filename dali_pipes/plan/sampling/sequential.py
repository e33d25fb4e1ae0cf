"""The sampling of evaluation: the order of the manifest."""

from dataclasses import dataclass
from typing import ClassVar

from dali_pipes.data.manifest import Manifest
from dali_pipes.plan.order import Order
from dali_pipes.plan.sampling.base import Sampling


@dataclass(kw_only=True, slots=True)
class Sequential(Sampling):
    """Every image once, in the manifest's order: what `shuffle=False` means."""

    takes_mixtures: ClassVar[bool] = True

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        n, size = len(manifest), self._size(manifest)
        return Order(size, lambda places: places % n, repeats=size != n)
