"""The headroom: a few real batches, made once and repeated. Only the ids are new in each batch."""

import itertools
from collections.abc import Iterator

import numpy as np
import torch

from dali_pipes.backends.base import Backend, DecodedBatch
from dali_pipes.backends.common.transfer import ids_on
from dali_pipes.backends.config import CachedConfig, DaliConfig
from dali_pipes.backends.dali.backend import DaliBackend
from dali_pipes.plan.plan import PlannedBatch


class CachedBackend(Backend):
    """Makes the samples of the first rows with DALI, in several orders, and delivers these images for all rows."""

    _config: CachedConfig

    def _prepare(self) -> None:
        dali = DaliConfig().on_cores()
        self._source = DaliBackend(self._manifest, self._transform, dali, self._batch_size, self._device, self._probe)
        self._refuse_padding()
        self._made: list[tuple[torch.Tensor, ...]] = []

    @property
    def engine_mix(self) -> str | None:
        return self._source.engine_mix

    def explain(self) -> str:
        return f"the same {self._config.batches} batches again and again; once, {self._source.explain()}"

    def stream(self, rows: Iterator[PlannedBatch]) -> Iterator[DecodedBatch]:
        if not self._made:
            first = next(rows)
            rows = itertools.chain([first], rows)
            places = np.resize(np.arange(len(first)), self._batch_size)
            orders = [first.take(np.roll(places, shift)) for shift in range(self._config.batches)]
            made = self._source.stream(itertools.cycle(orders))
            self._made = [tuple(map(torch.clone, batch.groups)) for batch in itertools.islice(made, self._config.batches)]
            self._source.close()
        return self._repeat(rows)

    def _repeat(self, rows: Iterator[PlannedBatch]) -> Iterator[DecodedBatch]:
        for row, groups in zip(rows, itertools.cycle(self._made)):
            parts = zip(groups, row.groups, strict=True)
            yield DecodedBatch.of([images[: len(row) * len(views)] for images, views in parts], ids_on(self._device, row))

    def close(self) -> None:
        self._source.close()
        self._made = []
