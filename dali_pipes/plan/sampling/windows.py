"""The window shuffle: an order that needs a few shards at a time.

`plan/windows.py` cuts the shards into lanes and windows.
"""

import hashlib
import math
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dali_pipes.checks import check_int, check_number
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.shards.copies import cache_bytes
from dali_pipes.data.table.samples import Shards
from dali_pipes.errors import ChoiceError, OptionError
from dali_pipes.options import option
from dali_pipes.plan.order import Order
from dali_pipes.plan.sampling.base import MAX_SAMPLES, Int, Sampling
from dali_pipes.plan.windows import Lanes, LanesError, describe_multiples
from dali_pipes.system.nodes import nodes_of_run


@dataclass(kw_only=True, slots=True)
class Windows(Sampling):
    """Every image once, in an order that needs a few shards at a time, for shards that do not all
    fit onto a machine.

    The shards are dealt to lanes in a new random order each epoch; a lane reads window after window
    of whole shards, permutes the samples of each, and has its own share of every global batch.

    Attributes:
        lanes: how many; the ranks divide them, or are divided by them. None: one for each machine
            of the run.
        window_gb: 10**9 bytes of shards that a window of a lane has at most. None: half of what the
            machine's cache of copies may hold for the lane, so that it holds the next window too.
        times: how often an image comes, side by side, as `Repeated` has them.
    """

    lanes: int | None = option(None, check_int, 1, 2**16)
    window_gb: float | None = option(None, check_number, 1e-6, 1e6)
    times: int = option(1, check_int, 1, MAX_SAMPLES)

    def on_machine(self) -> Self:
        nodes, decided = nodes_of_run() or 1, copy(self)
        decided.lanes = self.lanes or nodes
        # half of the cache, since it also holds the next window of each of the machine's lanes
        here = math.ceil(decided.lanes / nodes)
        decided.window_gb = self.window_gb or cache_bytes() // (2 * here) / 1e9
        return decided

    def explain(self) -> str:
        decided = self.on_machine()
        return f"lanes={decided.lanes}, each with windows of {decided.window_gb:.10g} GB of shards"

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        try:
            return self.on_machine()._order(manifest, seed, global_batch_size)
        except LanesError as error:
            raise OptionError(Windows, str(error)) from None

    def _order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        assert self.lanes and self.window_gb
        if global_batch_size % self.times:
            fits = describe_multiples(global_batch_size, self.times * self.lanes)
            raise OptionError(
                Windows,
                f"times={self.times} does not divide a global batch of {global_batch_size}; "
                f"{fits} would do",
            )

        shards, window = _shards(manifest), round(self.window_gb * 1e9)

        # lanes and windows order single images; the `times` repeats of one are made in `at`
        size = self._size(manifest, 1 if self.times == 1 else global_batch_size)
        cut = (self.lanes, window, global_batch_size // self.times, size // self.times, seed)
        lanes = Lanes(np.bincount(shards.numbers), shards.bytes, *cut)
        # only if the images of a shard are not side by side in the manifest
        apart = (np.diff(shards.numbers) < 0).any()
        members = np.argsort(shards.numbers, kind="stable") if apart else None

        def at(places: Int) -> Int:
            numbers = lanes.at(places // self.times)
            return numbers if members is None else members[numbers]

        return Order(size, at, repeats=self.times > 1 or size != len(manifest), lanes=lanes)

    def state(self, manifest: Manifest) -> dict[str, Any]:
        digest = hashlib.sha256(_shards(manifest).bytes.tobytes()).hexdigest()[:16]
        state = {"algorithm": "line of shards, Feistel", "shard_sizes": digest}
        return Sampling.state(self.on_machine(), manifest) | state


def _shards(manifest: Manifest) -> Shards:
    shards = manifest.shards
    # a file of one image counts as a shard of 0 bytes
    if not shards.bytes.all():
        raise ChoiceError(
            Windows,
            f"is for shards, and {manifest.root} has images that are files of their own; pack "
            "them by `dali-pipes prepare to=shards`, or leave sampling out",
        )
    return shards
