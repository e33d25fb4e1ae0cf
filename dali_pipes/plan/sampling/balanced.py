"""Each class as often as any other."""

from dataclasses import dataclass

import numpy as np

from dali_pipes.data.manifest import Manifest
from dali_pipes.plan.order import GroupPosition, Groups, Order
from dali_pipes.plan.permutation import permute
from dali_pipes.plan.philox import Kind
from dali_pipes.plan.sampling.base import Int, Sampling, classes_of


@dataclass(kw_only=True, slots=True)
class Balanced(Sampling):
    """Each class as often as any other. The classes come in rounds, each in a random order, and all
    images of a class come before one comes again.
    """

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        groups = Groups(classes_of(manifest, Balanced), seed)

        def locate(places: Int) -> GroupPosition:
            rounds, within = np.divmod(places, len(groups))
            return groups.locate_turn(
                permute(len(groups), within, seed, Kind.GROUPS, rounds), rounds
            )

        # a batch touches at most batch // classes + 2 rounds, and a class comes once in each
        return groups.order(
            self._size(manifest), locate, apart=global_batch_size // len(groups) + 2
        )
