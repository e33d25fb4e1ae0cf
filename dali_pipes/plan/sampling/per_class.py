"""Batches of a few images of each of a few classes, for metric learning."""

from dataclasses import dataclass

import numpy as np

from dali_pipes.checks import check_int
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import OptionError
from dali_pipes.options import option
from dali_pipes.plan.order import GroupPosition, Groups, Order
from dali_pipes.plan.permutation import permute
from dali_pipes.plan.philox import Kind
from dali_pipes.plan.sampling.base import MAX_SAMPLES, Int, Sampling, classes_of


@dataclass(kw_only=True, slots=True)
class PerClass(Sampling):
    """`classes` × `samples` in every global batch, class by class: for losses that compare images
    of a batch.

    An image comes twice in a batch only if its class has fewer than `samples`. An epoch is whole
    batches.

    Attributes:
        classes, samples: classes of a global batch, and images of each; their product is the global
            batch size.
    """

    classes: int = option(8, check_int, 1, MAX_SAMPLES)
    samples: int = option(4, check_int, 1, MAX_SAMPLES)

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        if self.classes * self.samples != global_batch_size:
            raise OptionError(
                PerClass,
                f"classes: {self.classes} classes × {self.samples} samples are not the global "
                f"batch of {global_batch_size}; set classes, samples or the batch size",
            )

        groups = Groups(classes_of(manifest, PerClass), seed)
        if self.classes > len(groups):
            raise OptionError(
                PerClass,
                f"classes is {self.classes}, and there are {len(groups)} classes with images",
            )

        # how often a class comes until all of its images have come
        visits = np.maximum(groups.sizes // self.samples, 1)

        def locate(places: Int) -> GroupPosition:
            step, within = np.divmod(places, global_batch_size)

            # rounds of all classes in a random order, `classes` of them in a batch; those that fill
            # no batch at the end of a round are left out of it
            rounds, batch = np.divmod(step, len(groups) // self.classes)
            group = permute(
                len(groups),
                batch * self.classes + within // self.samples,
                seed,
                Kind.GROUPS,
                rounds,
            )

            # the remainder repeats the images of a class that has fewer than `samples`
            number, visit = np.divmod(rounds, visits[group])
            return GroupPosition(
                group, number, (visit * self.samples + within % self.samples) % groups.sizes[group]
            )

        return groups.order(self._size(manifest, global_batch_size), locate, apart=self.samples)
