"""Runs the parts of a training program, each alone and then together, each for one span."""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from dali_pipes.system.page_cache import evict, resident_share, spread
from dali_pipes.tools.diagnosis.measuring.measure_span import measure_span
from dali_pipes.tools.diagnosis.measuring.span import Span
from dali_pipes.tools.diagnosis.measuring.training import Training
from dali_pipes.tools.diagnosis.programs.base import Feed, TrainingProgram

RESIDENT = 4  # batches that stay on the device
LARGER = 4  # how many times as large a larger batch is
COLD_BATCHES = 8  # with fewer, most of what is measured would be the start
_MAX_WARM_UP_S = 15.0
_EVICTION_S = 20.0
_LOOKED_AT = 2000  # files, for the share that is still in memory
STEPS = 10  # steps that are profiled on a GPU


class Probes:
    """Runs the parts of one program. What trains is a generator of batches (measuring/training.py).

    Args:
        seconds, least: minimum duration and minimum number of batches of each span.
    """

    def __init__(self, program: TrainingProgram, feed: Feed, seconds: float, least: int = 3):
        self._program, self._feed, self._seconds, self._least = program, feed, seconds, least
        self._resident: list[Any] = []
        self.slowest: Any = None  # the batch that was waited for longest when the loader ran alone

    def start(self) -> Training[None]:
        """Takes the batches that stay on the device, and trains on one of them.

        So what a step does only once is not measured.
        """
        self._resident = [
            self._feed.resident(batch) for batch in itertools.islice(self._feed.batches, RESIDENT)
        ]
        yield self._resident[0]

    def model(self) -> Training[Span]:
        return self._measure(itertools.cycle(self._resident))

    def larger(self) -> Training[Span | None]:
        """Runs the model with batches four times as large; None if batches of this type cannot be
        joined.

        A step may raise anything at a batch of another size, or run out of memory: the caller has
        to survive that.
        """
        try:
            batch = self._program.concat(self._resident[:1] * LARGER)
        except Exception:  # arrays of a user's own class may raise anything
            return None

        # a first step that is not measured: what a step does once for a new size is done in it
        yield batch
        return (yield from self._measure(itertools.repeat(batch)))

    def loader(self) -> Training[Span]:
        """Takes batches as fast as they come; none is trained on."""
        for _ in self._drain_prefetched():
            pass
        batches, longest = self._feed.batches, 0.0

        def remembering() -> Iterator[Any]:
            nonlocal longest
            while True:
                first, before = self._feed.starts_epoch(), time.monotonic()
                batch = next(batches)
                if not first and time.monotonic() - before > longest:
                    longest, self.slowest = time.monotonic() - before, batch
                yield batch

        return self._measure(remembering(), self._feed.starts_epoch, trains=False)

    def together(self) -> Training[Span]:
        yield from self._drain_prefetched()
        return (yield from self._measure(self._feed.batches, self._feed.starts_epoch))

    def cold(self) -> Training[tuple[Span | None, float | None]]:
        """Trains on files that are not in the page cache.

        The loader has been started, its prefetched batches are used up, and no file is counted
        twice. Returns the span, None if there are too few files; and the share of the files that
        was still in the page cache, None if unknown.
        """
        program, paths = self._program, self._program.paths
        if len(paths) < COLD_BATCHES * program.count(self._resident[0]):
            return None, None

        # the first batch starts the loader while its files are still in memory
        with program.feed() as feed:
            next(feed.batches)
            # of a million files it drops what it can in this time: the share says how many
            evict(paths, _EVICTION_S)
            resident = resident_share(spread(paths, _LOOKED_AT))
            # prefetched batches are not cold; using them up takes at most a quarter of the files
            for _ in range(
                min(program.in_flight, len(paths) // (4 * program.count(self._resident[0])))
            ):
                next(feed.batches)
            cold = yield from measure_span(
                feed.batches, program.count, self._seconds, 1, feed.starts_epoch, len(paths) // 2
            )

        return cold, resident

    def busy_share(self) -> Training[float]:
        """Returns the share of the time in which the GPU ran at least one kernel or copy, over a
        few steps with a resident batch.
        """
        # nothing of an earlier step may still run
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
            begin = time.monotonic()
            for _ in range(STEPS):
                yield self._resident[0]
            torch.cuda.synchronize()
            seconds = time.monotonic() - begin

        # only what ran on the GPU has device time; time_range is in microseconds
        spans = [
            (event.time_range.start, event.time_range.end)
            for event in profiled.events()
            if event.device_time_total > 0
        ]
        return union_length(spans) / 1e6 / seconds

    def count_syncs(self) -> Training[int]:
        """Returns how often one step makes the host wait for the GPU, as far as PyTorch knows
        (torch.cuda.set_sync_debug_mode).
        """
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield self._resident[0]
            finally:
                torch.cuda.set_sync_debug_mode(before)
        # other warnings of the step are caught as well; PyTorch's has these words
        return sum("called a synchronizing" in str(warning.message) for warning in caught)

    def _drain_prefetched(self) -> Iterator[Any]:
        """Yields the batches that were made before the span."""
        begin = time.monotonic()
        for _ in range(self._program.in_flight):
            yield next(self._feed.batches)
            # a slow loader may take minutes for them
            if time.monotonic() - begin > _MAX_WARM_UP_S:
                return

    def _measure(
        self,
        batches: Iterator[Any],
        starts_epoch: Callable[[], bool] = lambda: False,
        trains: bool = True,
    ) -> Training[Span]:
        program = self._program
        return measure_span(
            batches,
            program.count,
            self._seconds,
            self._least,
            starts_epoch,
            epoch=program.epoch,
            trains=trains,
        )


def union_length(spans: list[tuple[float, float]]) -> float:
    """Returns the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def copy_seconds(nbytes: int, pinned: bool, times: int = 5) -> float:
    """Returns the seconds that copying this many bytes to the current GPU takes."""
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    # the first copy is not measured
    target.copy_(source)
    torch.cuda.synchronize()

    begin = time.monotonic()
    for _ in range(times):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return (time.monotonic() - begin) / times
