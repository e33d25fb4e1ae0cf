"""The headroom: a few real batches, which DALI makes once, again and again."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from dali_pipes.backends.base import EVERYTHING, Backend, DecodedBatch, Delivery
from dali_pipes.backends.common.transfer import ids_on
from dali_pipes.backends.config import MAX_COUNT, LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.registry import entry_of
from dali_pipes.checks import check_min
from dali_pipes.options import option
from dali_pipes.plan.plan import PlannedBatch


@dataclass(kw_only=True, slots=True)
class CachedConfig(LoaderConfig):
    """The same few batches again and again, made once by DALI: what any loader could gain at most
    on real images.

    Attributes:
        batches: how many are kept, on the device.
    """

    batches: int = option(4, check_min, 1, MAX_COUNT)


class CachedBackend(Backend):
    """Makes a few batches with DALI once, and delivers their images again and again: the headroom.

    They are the samples of the first planned batch, in several orders.
    """

    _config: CachedConfig
    carries_out = EVERYTHING  # by DALI

    def _prepare(self) -> None:
        # DALI makes them on the GPU if there is one, and on all cores
        dali = DaliConfig().on_cores()
        self._source = entry_of(dali).load()(
            self._manifest, self._transform, dali, self._batch_size, self._device, self._probe
        )
        self._refuse_padding()
        self._cached_groups: list[tuple[torch.Tensor, ...]] = []

    @property
    def engine_mix(self) -> str | None:
        return self._source.engine_mix

    def explain(self) -> str:
        return (
            f"the same {self._config.batches} batches again and again; once, "
            f"{self._source.explain()}"
        )

    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Delivery]:
        if not self._cached_groups:
            first = next(planned)
            # the first batch is not taken away from the caller
            planned = itertools.chain([first], planned)
            # a first batch that is not full is filled up
            places = np.resize(np.arange(len(first)), self._batch_size)
            orders = [first.take(np.roll(places, shift)) for shift in range(self._config.batches)]

            # `replace` without changes: each batch must be an object of its own (`InWork`)
            deliveries = self._source.stream(map(replace, itertools.cycle(orders)))
            self._cached_groups = [
                tuple(map(torch.clone, batch.groups))
                for _, batch in itertools.islice(deliveries, self._config.batches)
            ]
            self._source.close()
        return self._repeat(planned)

    def _repeat(self, planned: Iterator[PlannedBatch]) -> Iterator[Delivery]:
        # ids are those of the plan, although the images are others
        for batch, groups in zip(planned, itertools.cycle(self._cached_groups)):
            parts = zip(groups, batch.groups, strict=True)
            yield (
                batch,
                DecodedBatch.of(
                    [images[: len(batch) * len(views)] for images, views in parts],
                    ids_on(self._device, batch),
                ),
            )

    def close(self) -> None:
        self._source.close()
        self._cached_groups = []
