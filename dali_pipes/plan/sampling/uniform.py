"""The sampling of training: a new random order of all images each epoch."""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from dali_pipes.data.manifest import Manifest
from dali_pipes.plan.order import Order
from dali_pipes.plan.permutation import permute, random_permutation
from dali_pipes.plan.philox import Kind
from dali_pipes.plan.sampling.base import Int, Sampling

# Images from which on no permutation is stored: to make one of 10 million takes 1.4 s
# (docs/sampling.md), and the time grows with the number of images.
LARGE = 2**24


@dataclass(kw_only=True, slots=True)
class Uniform(Sampling):
    """Every image once, in a new random order each time: what `shuffle=True` means.

    From 2**24 images on the order is a keyed bijection, of which a step costs what its batch costs;
    below it is stored.
    """

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        n, size = len(manifest), self._size(manifest)
        # that of this epoch and, since it is made meanwhile, that of the next one; they are let go
        # with the plan
        stored = lru_cache(maxsize=2)(partial(random_permutation, n, seed))

        def at(places: Int) -> Int:
            numbers, within = np.divmod(places, n)
            if n >= LARGE:
                return permute(n, within, seed, Kind.IMAGES, numbers)

            ids = np.empty(len(places), np.int64)
            for number in np.unique(numbers).tolist():
                here = numbers == number
                ids[here] = stored(number)[within[here]]
            return ids

        # an epoch of another size may have the end of one permutation and the start of the next
        return Order(size, at, repeats=size != n)

    def state(self, manifest: Manifest) -> dict[str, Any]:
        return Sampling.state(self, manifest) | (
            {"permutation": "Feistel"} if len(manifest) >= LARGE else {}
        )
