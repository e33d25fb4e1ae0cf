"""Fetches the shards of the next window while the present one is read.

This is for shards that are copied into a local cache before they are read. `check_room` refuses
plans that the cache cannot hold. A Fetcher holds copies of what is needed soon. The loader calls
`start` at the first batch, then `plan` for each batch that is about to be read and `deliver` for
each that is delivered.
"""

import logging
import math
import threading
import time
from itertools import islice
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.shards.copies import (
    FOLDER,
    LIMIT,
    NoRoomError,
    cache_bytes,
    cache_folder,
    check_folder,
    hold_copy,
    is_copied,
    release,
)
from dali_pipes.data.table.samples import Shards
from dali_pipes.errors import ConfigError, Mention, OptionError, Spelling
from dali_pipes.plan.plan import Plan
from dali_pipes.plan.sampling import Sequential, Windows
from dali_pipes.plan.windows import Lanes, Window
from dali_pipes.system.interrupts import delayed_signals
from dali_pipes.system.nodes import nodes_of_run

Place = tuple[float, float]  # epoch and step; (math.inf, 0.0): nothing was started yet
_AT_ONCE = 8  # shards that are fetched at a time; each is fetched in parts, one after the other
_PAUSE_S = 0.1  # between two looks for room in the cache

log = logging.getLogger(__name__)


def check_room(plan: Plan) -> None:
    """Raises a ConfigError if the local cache cannot hold the shards that the order of the samples
    needs at the same time.
    """
    if not plan.manifest.copied:
        return

    check_folder()
    sizes, room = _copy_sizes(plan.manifest.shards), cache_bytes()
    instead: str | Spelling
    for lanes in plan.all_lanes:
        # in windows the present and the next one of each lane, in order one shard after the other,
        # else all shards
        if lanes:
            # the ranks of a machine share its cache; if the number of machines is not known, only
            # the lanes of this rank count
            mine = len(lanes.lanes_of(plan.rank.index, plan.rank.count))
            lanes_here = max(mine, math.ceil(lanes.count / (nodes_of_run() or lanes.count)))
            needed = min(2 * lanes.window_bytes * lanes_here, int(sizes.sum()))
            what, instead = (
                f"{lanes_here} lanes with two windows of {_gb(lanes.window_bytes)} each",
                "lower window_gb",
            )
            _check_batch(plan, lanes)
        elif isinstance(plan.sampling, Sequential):
            needed, instead = int(sizes.max()), "make smaller shards"
            what = f"a shard of {_gb(needed)}"
        else:
            needed, instead = (
                int(sizes.sum()),
                Spelling("load them with sampling=dp.Windows()", "load them with sampling=windows"),
            )
            what = f"{_gb(needed)} of shards"

        if needed > room:
            problem = (
                f"{plan.manifest.root}: this order needs {what} at once, and the cache "
                f"{cache_folder()} may hold {_gb(room)}; set "
                f"{LIMIT} to {needed / 1e9:.10g} at least, with {FOLDER} on a disk of that "
                "size, or ",
                instead,
            )
            if lanes:
                raise OptionError(Windows, "window_gb: ", *problem)
            raise ConfigError(*problem)


def _copy_sizes(shards: Shards) -> NDArray[np.int64]:
    """The bytes of each shard's copy; 0: it is read where it is, as tars on this machine."""
    return np.where([is_copied(file) for file in shards.files], shards.bytes, 0)


def _check_batch(plan: Plan, lanes: Lanes) -> None:
    batch = plan.global_batch_size // lanes.count
    window = int(
        lanes.window_bytes * len(plan.manifest) / max(int(plan.manifest.shards.bytes.sum()), 1)
    )
    if batch > window:
        log.warning(
            "a window of %s has about %d images, and a lane reads %d of every global "
            "batch, so shards are fetched "
            "several times; raise %s (it should hold hundreds of batches)",
            *(_gb(lanes.window_bytes), window, batch, Mention(Windows, "window_gb")),
        )


def _gb(size: int) -> str:
    return f"{size / 1e9:,.3g} GB"


class Fetcher:
    """Holds copies of the shards of a rank's present windows and of the next ones, and fetches what
    is missing, in threads.

    A shard that cannot be fetched is left to the readers, whose error names it.
    """

    def __init__(self, plan: Plan):
        self._plan, self._shards = plan, plan.manifest.shards
        self._sizes = _copy_sizes(self._shards)
        self._wanted: list[int] = []  # shards, the most urgent first
        self._held: dict[int, int] = {}  # the open copy's file descriptor, by shard
        # the last epoch and step that the present windows serve, and the last that the next ones do
        self._present_end = self._next_end = (math.inf, 0.0)
        self._lock = threading.Lock()
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def deliver(self, epoch: int, step: int) -> None:
        """Says that this batch is the next to be delivered."""
        if (epoch, step) > self._present_end:
            self.start(epoch, step)

    def plan(self, epoch: int, step: int) -> None:
        """Says that this batch is about to be read, ahead of the one that is delivered.

        If windows are so small that it is beyond the next one, they move on with it.
        """
        if (epoch, step) > self._next_end:
            self.start(epoch, step)

    def start(self, epoch: int, step: int) -> None:
        """Begins to fetch what is needed from this batch on, and lets go of everything else."""
        shards, self._present_end, self._next_end = self._windows_at(epoch, step)
        wanted = [shard for shard in shards if self._sizes[shard]]
        with self._lock:
            self._wanted = wanted
            for shard in self._held.keys() - set(wanted):
                release(self._held.pop(shard))
            missing = [shard for shard in wanted if shard not in self._held]

        # daemons: a store that hangs does not keep the program from ending
        if missing and not self._threads:
            threads = [
                threading.Thread(target=self._work, name="fetch", daemon=True)
                for _ in range(_AT_ONCE)
            ]
            # a thread that is interrupted while it starts may wait forever
            with delayed_signals():
                self._threads = threads
                for thread in threads:
                    thread.start()
        for shard in missing:
            self._queue.put(shard)

    @property
    def progress(self) -> tuple[int, int]:
        """How many shards of the present and the next windows are here, and how many there are."""
        with self._lock:
            return len(self._held), len(self._wanted)

    def _windows_at(self, epoch: int, step: int) -> tuple[list[int], Place, Place]:
        """The shards of the present windows at a step and of the next ones, the most urgent first,
        and the last epoch and step that the present and that the next windows serve.
        """
        lanes, rank, end = self._plan.lanes(epoch), self._plan.rank, (epoch, self._plan.steps - 1)
        if lanes is None:
            return [], end, end

        # each lane's windows, one after the other without end; a lane without samples has none
        of_lanes = [
            filter(self._is_delivered, lanes.windows(lane, epoch, step))
            for lane in lanes.lanes_of(rank.index, rank.count)
        ]
        present = [window for windows in of_lanes for window in islice(windows, 1)]
        following = [window for windows in of_lanes for window in islice(windows, 1)]

        # the ranks that share a lane begin with different shards, so that none fetches for all
        sharing = max(1, rank.count // lanes.count)
        shards: dict[int, None] = {}  # each once, the most urgent first
        for window in present + following:
            first = rank.index % sharing * len(window.shards) // sharing
            shards |= dict.fromkeys(np.roll(window.shards, -first).tolist())

        # windows move on with the lane whose window ends first
        present_end = min((window.last for window in present), default=end)
        next_end = min((window.last for window in following), default=end)
        return list(shards), present_end, next_end

    def _is_delivered(self, window: Window) -> bool:
        """Whether a batch of this window is delivered: an epoch's last ones may be left out."""
        return window.first[1] < self._plan.steps or window.last[0] > window.first[0]

    def _work(self) -> None:
        while (shard := self._queue.get()) is not None:
            self._fetch(shard)

    def _fetch(self, shard: int) -> None:
        version = int(self._shards.bytes[shard]), int(self._shards.times[shard])
        while True:
            with self._lock:
                if shard in self._held or shard not in self._wanted:
                    return

            try:
                number = hold_copy(self._shards.files[shard], version)
                break
            except NoRoomError:
                time.sleep(_PAUSE_S)  # until the readers are done with older shards
            except Exception as error:
                log.info("%s: not fetched ahead (%s)", self._shards.files[shard], error)
                return

        # the windows may have moved on meanwhile
        with self._lock:
            if shard in self._wanted and shard not in self._held:
                self._held[shard] = number
                return
        release(number)

    def close(self) -> None:
        with self._lock:
            self._wanted, held, self._held = [], self._held, {}
        for number in held.values():
            release(number)
        # each None ends one thread
        for _ in self._threads:
            self._queue.put(None)
        self._threads = []
