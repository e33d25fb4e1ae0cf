"""Each image several times in a batch."""

from dataclasses import dataclass

import numpy as np

from dali_pipes.checks import check_int
from dali_pipes.data.manifest import Manifest
from dali_pipes.options import option
from dali_pipes.plan.order import Order
from dali_pipes.plan.permutation import permute
from dali_pipes.plan.philox import Kind
from dali_pipes.plan.sampling.base import MAX_SAMPLES, Int, Sampling


@dataclass(kw_only=True, slots=True)
class Repeated(Sampling):
    """Each image several times in a batch, each time with other random numbers: repeated
    augmentation (Hoffer et al., "Augment your batch", CVPR 2020). An epoch has as many samples as
    there are images, so it sees 1/times of them; the next epoch goes on with the others.

    Attributes:
        times: how often.
        spread: the repeats are in different parts of the global batch, and so on different ranks,
            as with DeiT's and timm's RepeatAugSampler; otherwise they are side by side.
    """

    times: int = option(3, check_int, 1, MAX_SAMPLES)
    spread: bool = False

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        n, times, batch = len(manifest), self.times, global_batch_size
        # with `spread` the batch's places in the order 0, times, 2 · times, …, 1, times + 1, …
        dealt = (
            np.argsort(np.arange(batch) % times, kind="stable") if self.spread else np.arange(batch)
        )

        def at(places: Int) -> Int:
            step, within = np.divmod(places, batch)
            number, place = np.divmod((step * batch + dealt[within]) // times, n)
            return permute(n, place, seed, Kind.IMAGES, number)

        return Order(self._size(manifest, batch if self.spread else 1), at)
