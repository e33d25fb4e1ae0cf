"""The training program that is diagnosed, and its parts, each run alone, then together.

`TrainingProgram` is what each kind of program implements (`*_program.py`). `Feed` is its loader,
once started. `Probes` runs the parts, each for one span, and `Fix` is a change with its gain.
"""

import itertools
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from dali_pipes.loader.loader import Loader
from dali_pipes.measure.trial import repeat_epochs
from dali_pipes.system.page_cache import evict, resident_share
from dali_pipes.tools.diagnosis.items import ItemProfile
from dali_pipes.tools.diagnosis.span import Span, Step, Training, watch
from dali_pipes.tools.diagnosis.verdict import TrainingFigures

RESIDENT = 4  # batches that stay on the device
LARGER = 4  # how many times as large a larger batch is
COLD_BATCHES = 8  # with fewer, most of what is measured would be the start
_MAX_WARM_UP_S = 15.0
STEPS = 10  # steps that are profiled on a GPU


@dataclass(frozen=True, slots=True)
class Feed:
    """A loader that has been started.

    Attributes:
        batches: its batches without end, epoch after epoch.
        starts_epoch: tells whether the next batch is the first of an epoch.
        resident: puts a batch on the device, if it is not there.
        slow: returns which of a batch's images took longest, as (name, seconds); called for the
            batch that was waited for longest.
    """

    batches: Iterator[Any]
    starts_epoch: Callable[[], bool]
    resident: Callable[[Any], Any] = lambda batch: batch
    slow: Callable[[Any], list[tuple[str, float]]] = lambda batch: []


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that may make training faster.

    Attributes:
        what: Hydra overrides, an option of a DataLoader, or a sentence where there is neither.
        why: the reason, in a few words.
        program: the program with the change; None: it cannot be tried from here.
        part: "loader" or "model", the part that it changes.
        speeds_up: by how much each part becomes faster if it cannot be tried: from, to, and perhaps
            what is likely between them.
        computes_less: whether a part that becomes faster also takes less CPU time, rather than wait
            less.
        note: side effects.
        predicted: its gain as a factor on images/s, with the interval that it lies in; None:
            unknown.
        measured: its gain, with the change made; None: not measured.
        patch: the change of the program's text, as a unified diff; "" if it is none, or not known.
        threads: how many threads of PyTorch the step is to run on; None: as many as it does now.
        is_hidden: whether it gains this only once the other programs on this machine have ended.
    """

    what: str
    why: str
    program: "TrainingProgram | None" = None
    part: str = "loader"
    speeds_up: dict[str, tuple[float, ...]] = field(default_factory=dict)
    computes_less: bool = False
    note: str = ""
    predicted: "Gain | None" = None
    measured: float | None = None
    patch: str = ""
    threads: int | None = None
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class Gain:
    """A factor on images/s, and the interval that it is expected in."""

    estimate: float
    low: float
    high: float


class TrainingProgram(ABC):
    """A training program, in parts that can be run alone.

    Attributes:
        workers: processes or threads that make batches; at least 1, the thread that trains.
        processes: worker processes of a DataLoader; None: there is no such option.
        burst: how many batches arrive at once: worker processes make one each at the same time.
        in_flight: batches that are made ahead; 0: loader and step alternate.
        paths: the file of each image, if known; they can be dropped from the page cache.
        data_bytes: size of all files of the data set.
        decodes_on_gpu: whether the loader decodes on the GPU.
        is_fetched: whether images come out of an object store.
        starts_anew: whether each epoch starts worker processes anew.
        epoch: number of batches of an epoch; None: unknown.
        uses_torch_threads: whether its step runs on PyTorch's threads.
        step_may_fail: whether its own loop is being given a batch that it may not accept.
    """

    workers: int
    processes: int | None = None
    burst: int
    in_flight: int
    paths: Sequence[Path] = ()
    data_bytes = 0
    decodes_on_gpu = is_fetched = False
    starts_anew = False
    epoch: int | None = None
    step_may_fail = False
    uses_torch_threads = True

    @abstractmethod
    def feed(self) -> AbstractContextManager[Feed]:
        """Starts the loader."""

    def step(self) -> Step | None:
        """Returns the training step on a batch; None if only the program's own loop can train."""
        return None

    @abstractmethod
    def transfer_size(self) -> tuple[int, bool]:
        """Returns the bytes of a batch that are copied from the CPU to a GPU, and whether they are
        in page-locked memory.
        """

    def count(self, batch: Any) -> int:
        """Returns how many images the batch holds."""
        return len(batch)

    def concat(self, batches: Sequence[Any]) -> Any:
        """Returns one batch of all their images; raises TypeError if batches of this type cannot be
        joined.
        """
        raise TypeError(f"batches of {type(self).__name__} cannot be joined")

    def profile(self, seconds: float) -> ItemProfile | None:
        """Makes items in this thread for so many seconds, and returns what they spend their time
        with; None if that cannot be seen.
        """
        return None

    def remarks(self) -> list[str]:
        """Returns what is wrong, or may cost time, as can be seen without measuring; with what to
        do instead.
        """
        return []

    def other_workers(self, found: TrainingFigures, items: ItemProfile | None) -> list[Fix]:
        """Returns other settings of the loader's processes, to try before there is a verdict."""
        return []

    def fixes(self, verdict: str) -> list[Fix]:
        """Returns fixes to try, the most promising first; none for a program that is a fix."""
        return []


def loader_feed(
    loader: Loader, slow: Callable[[Any], list[tuple[str, float]]] = lambda batch: []
) -> Feed:
    """Returns the feed of a loader of dali_pipes that has been started."""
    return Feed(repeat_epochs(loader), lambda: loader.batches_left == len(loader), slow=slow)


class Probes:
    """Runs the parts of one program. What trains is a generator of batches (span.py).

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
        return self._watch(itertools.cycle(self._resident))

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

        yield batch
        return (yield from self._watch(itertools.repeat(batch)))

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

        return self._watch(remembering(), self._feed.starts_epoch, trains=False)

    def together(self) -> Training[Span]:
        yield from self._drain_prefetched()
        return (yield from self._watch(self._feed.batches, self._feed.starts_epoch))

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
            evict(paths)
            resident = resident_share(paths)
            # prefetched batches are not cold; using them up takes at most a quarter of the files
            for _ in range(
                min(program.in_flight, len(paths) // (4 * program.count(self._resident[0])))
            ):
                next(feed.batches)
            cold = yield from watch(
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
        return sum("called a synchronizing" in str(each.message) for each in caught)

    def _drain_prefetched(self) -> Iterator[Any]:
        """Yields the batches that were made before the span."""
        begin = time.monotonic()
        for _ in range(self._program.in_flight):
            yield next(self._feed.batches)
            # a slow loader may take minutes for them
            if time.monotonic() - begin > _MAX_WARM_UP_S:
                return

    def _watch(
        self,
        batches: Iterator[Any],
        starts_epoch: Callable[[], bool] = lambda: False,
        trains: bool = True,
    ) -> Training[Span]:
        program = self._program
        return watch(
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
