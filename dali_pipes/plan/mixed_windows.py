"""Window shuffle of a stratified mixture: each source has its own windows.

`MixedLanes` does for `Manifest.mix` what `windows.PlainLanes` does for one set of shards.
`order.Shares` says which source a sample comes from, and a `windows.Line` for each source says
which of its samples that is.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dali_pipes.plan.order import PERIOD, Shares
from dali_pipes.plan.windows import Lanes, LanesError, Line, Window

Int = NDArray[np.int64]


class MixedShards:
    """The part of a mixture that comes from one source.

    Args:
        ids: (n,) its images.
        numbers: (n,) the shard of each image.
        sizes: bytes of all shards of the manifest.
    """

    def __init__(self, ids: Int, numbers: NDArray[np.int32], sizes: Int):
        shards, compact, lengths = np.unique(numbers, return_inverse=True, return_counts=True)
        self.ids = ids[np.argsort(compact, kind="stable")]  # (n,) shard by shard
        self.shards = shards.astype(np.int64)  # (S,) their numbers in the manifest
        self.lengths = lengths  # (S,) how many images each shard has of the source
        self.sizes = sizes[shards]  # (S,) bytes of each shard


class MixedLanes(Lanes):
    """Gives each lane's part of a global batch the shares of the sources, rounded up or down.

    The whole batch has them too if the number of lanes divides 256, since lanes round up at
    different times. The images of a source come as those of `PlainLanes` do when an epoch is not as
    long as the data.

    Args:
        shares: of parts of `batch // lanes` samples.
        window_bytes: of all sources together.
        batch: samples of a global batch; an epoch has whole batches.
        steps: global batches of an epoch.

    Raises:
        LanesError: the batch cannot be cut into these lanes, or the windows hold no shard.
    """

    def __init__(
        self,
        sources: Sequence[MixedShards],
        shares: Shares,
        lanes: int,
        window_bytes: int,
        batch: int,
        steps: int,
        seed: int,
    ):
        super().__init__(lanes, window_bytes, batch)
        self._shares, self._steps, self._each = shares, steps, sources

        # which of the shares' windows each lane begins with: 2**32 apart, so that no two lanes use
        # the same one, and each at another place of the period, so that they round up at different
        # times
        number = np.arange(lanes)
        self._first_window = (number << 32) + number * PERIOD // lanes
        self._samples_before = np.stack(
            [shares.before(first) for first in self._first_window.tolist()]
        )

        windows = _divide_window_bytes(sources, shares.in_period, window_bytes)
        self._lines = [
            Line(
                shards.lengths,
                shards.sizes,
                lanes,
                window,
                seed,
                numbers=shards.shards,
                source=number,
            )
            for number, (shards, window) in enumerate(zip(sources, windows, strict=True))
        ]

    def at(self, places: Int) -> Int:
        """The ids at these places, counted through all epochs."""
        batch, within = np.divmod(places, self._batch)
        lane, within = np.divmod(within, self._shares.window)
        source, turn = self._shares.turns(
            (self._first_window[lane] + batch) * self._shares.window + within
        )
        # counted from the lane's first sample of the source
        turn -= self._samples_before[lane, source]

        ids = np.empty(len(places), np.int64)
        for number in np.unique(source).tolist():
            here = source == number
            ids[here] = self._each[number].ids[self._lines[number].at(lane[here], turn[here])]

        return ids

    def windows(self, lane: int, epoch: int = 0, step: int = 0) -> list[Iterator[Window]]:
        return [
            self._of_source(source, lane, epoch * self._steps + step)
            for source in range(len(self._each))
        ]

    def _of_source(self, source: int, lane: int, batch: int) -> Iterator[Window]:
        # `shares` counts windows and samples from 0, and the lane from its own first window
        first_window = int(self._first_window[lane])
        samples_before = int(self._samples_before[lane, source])
        first_turn = int(self._shares.before(first_window + batch)[source]) - samples_before
        return self._lines[source].windows(
            lane,
            first_turn,
            lambda turn: divmod(
                self._shares.window_of(source, samples_before + turn) - first_window, self._steps
            ),
        )


def _divide_window_bytes(
    sources: Sequence[MixedShards], drawn: Int, window_bytes: int
) -> list[int]:
    """The bytes of each source's windows.

    A source gets the size of its largest shard, and a part of the rest in proportion to the bytes
    that are read of it. `drawn` is how many samples of each source are drawn, in proportion.
    """
    largest = np.array([source.sizes.max() for source in sources])

    if (least := largest.sum()) > window_bytes:
        raise LanesError(
            f"window_gb={window_bytes / 1e9:g} does not hold a shard of each of "
            f"the {len(sources)} sources; "
            f"{least / 1e9:.10g} at least would do"
        )

    read = np.array([source.sizes.sum() / source.lengths.sum() for source in sources]) * drawn
    sizes = largest + (window_bytes - least) * read / read.sum()
    return [int(size) for size in sizes]
