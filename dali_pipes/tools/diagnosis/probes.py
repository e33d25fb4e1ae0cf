"""The training program that is diagnosed, and its parts, each run alone, then together."""

import itertools
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from dali_pipes.loader.loader import Loader
from dali_pipes.measure.trial import endless
from dali_pipes.system.page_cache import evict, resident_share
from dali_pipes.tools.diagnosis.window import Step, Window, watch

RESIDENT = 4  # batches
LARGER = 4  # times
COLD_BATCHES = 8  # of fewer, the start would be most of what is measured
_MAX_WARM_UP_S = 15.0
STEPS = 10  # that are profiled


@dataclass(frozen=True, slots=True)
class Feed:
    """A loader that has been started.

    Attributes:
        batches: endless, epoch after epoch.
        starts_epoch: whether the next batch is the first of an epoch.
        resident: puts a batch on the device, if it is not there.
        slow: which of a batch's images took longest, as (name, seconds); called for the batches with the longest wait.
    """

    batches: Iterator[Any]
    starts_epoch: Callable[[], bool]
    resident: Callable[[Any], Any] = lambda batch: batch
    slow: Callable[[Any], list[tuple[str, float]]] = lambda batch: []


@dataclass(frozen=True, slots=True)
class Fix:
    """A possible change.

    Attributes:
        what: Hydra overrides, or a sentence where there are none.
        why: the reason, in a few words.
        program: the program with the change; None: it cannot be tried from here.
        part: "loader" or "model", the one that it changes.
        speeds_up: the calculated speed-up of each part, if it cannot be tried.
        note: side effects.
        predicted, measured: its gain, as a factor on images/s; None: unknown, or not measured.
    """

    what: str
    why: str
    program: "TrainingProgram | None" = None
    part: str = "loader"
    speeds_up: dict[str, float] = field(default_factory=dict)
    note: str = ""
    predicted: float | None = None
    measured: float | None = None


class TrainingProgram(ABC):
    """A training program, in parts that can be run alone.

    Attributes:
        workers: processes or threads that make batches.
        burst: how many batches arrive at once: worker processes make one each at the same time.
        in_flight: batches that are made ahead; 0: loader and step alternate.
        paths: the file of each image, if known; they can be dropped from the page cache.
        data_bytes: of all files of the data set.
        decodes_on_gpu: whether the loader does.
        is_fetched: whether images come out of an object store.
    """

    workers: int
    burst: int
    in_flight: int
    paths: Sequence[Path] = ()
    data_bytes = 0
    decodes_on_gpu = is_fetched = False

    @abstractmethod
    def feed(self) -> AbstractContextManager[Feed]:
        """Starts the loader."""

    @abstractmethod
    def step(self) -> Step:
        """The training step on a batch."""

    def transfer_size(self) -> tuple[int, bool]:
        """The bytes of a batch that are copied from the CPU to a GPU, and whether they are in page-locked memory."""
        raise NotImplementedError(f"{type(self).__name__} is a fix, whose copies are not measured")

    def count(self, batch: Any) -> int:
        """How many images it holds."""
        return len(batch)

    def concat(self, batches: Sequence[Any]) -> Any:
        """One batch of all their images; raises TypeError if batches of this type cannot be joined."""
        raise TypeError(f"batches of {type(self).__name__} cannot be joined")

    def fixes(self, verdict: str) -> list[Fix]:
        """Fixes to try, the most promising first; a program that is itself a fix has none."""
        return []


def loader_feed(loader: Loader, slow: Callable[[Any], list[tuple[str, float]]] = lambda batch: []) -> Feed:
    """One of our loaders that has been started."""
    return Feed(endless(loader), lambda: loader.batches_left == len(loader), slow=slow)


@dataclass(frozen=True, slots=True)
class Round:
    """One window of each part, shortly after one another.

    Attributes:
        model: with batches that are on the device.
        loader: batches as fast as they come, nothing done with them.
        model_under_load: the model with resident batches while the loader makes as many, which are dropped: shows how they
            slow each other down. The model alone again if they alternate.
        together: training.
    """

    model: Window
    loader: Window
    model_under_load: Window
    together: Window


class Probes:
    """Runs the parts of one program.

    Args:
        seconds, least: minimum duration and minimum number of batches of each window.
    """

    def __init__(self, program: TrainingProgram, feed: Feed, seconds: float, least: int = 3):
        self._program, self._feed, self._seconds, self._least = program, feed, seconds, least
        self.slowest: Any = None  # the batch that was waited for longest when the loader ran alone

    @cached_property
    def _resident(self) -> list[Any]:
        return [self._feed.resident(batch) for batch in itertools.islice(self._feed.batches, RESIDENT)]

    @cached_property
    def _step(self) -> Step:
        """The step, run once before it is measured."""
        step = self._program.step()
        step(self._resident[0])
        return step

    def one_step(self) -> None:
        """The model with a resident batch."""
        self._step(self._resident[0])

    def model(self) -> Window:
        return self._watch(itertools.cycle(self._resident), self._step)

    def larger(self) -> Window | None:
        """The model with batches four times as large; None if these cannot be made, or the step does not accept them."""
        try:
            batch = self._program.concat(self._resident[:1] * LARGER)
            self._step(batch)
            return self._watch(itertools.repeat(batch), self._step)
        except Exception:  # a user's step may raise anything at a batch of another size, or be out of memory
            return None

    def loader(self) -> Window:
        self._warm_up(lambda batch: None)
        batches, longest = self._feed.batches, 0.0

        def remembering() -> Iterator[Any]:
            nonlocal longest
            while True:
                first, before = self._feed.starts_epoch(), time.monotonic()
                batch = next(batches)
                if not first and time.monotonic() - before > longest:
                    longest, self.slowest = time.monotonic() - before, batch
                yield batch

        return self._watch(remembering(), lambda batch: None, self._feed.starts_epoch)

    def together(self) -> Window:
        self._warm_up(self._step)
        return self._watch(self._feed.batches, self._step, self._feed.starts_epoch)

    def model_under_load(self) -> Window:
        if not self._program.in_flight:  # the training's own thread loads, between its steps: nothing runs beside them
            return self.model()
        taken = list[Future[None]]()

        def take() -> None:
            next(self._feed.batches)

        def step(batch: Any) -> None:
            taken.append(pool.submit(take))
            self._step(batch)

        # the current device is per thread
        set_device = partial(torch.cuda.set_device, torch.cuda.current_device()) if torch.cuda.is_available() else None
        with ThreadPoolExecutor(1, initializer=set_device) as pool:
            try:
                window = self._watch(itertools.cycle(self._resident), step)
            finally:
                pool.shutdown(cancel_futures=True)
        for each in taken:
            if not each.cancelled():
                each.result()  # an error of the loader
        return window

    def cold(self) -> tuple[Window | None, float | None]:
        """Training on files that are not in the page cache, None if too few; and the share of them that still was, if known.

        The loader has been started, its prefetched batches are used up, and no file is counted twice.
        """
        program, paths = self._program, self._program.paths
        if len(paths) < COLD_BATCHES * program.count(self._resident[0]):
            return None, None
        with program.feed() as feed:
            next(feed.batches)
            evict(paths)
            resident = resident_share(paths)
            for _ in range(min(program.in_flight, len(paths) // (4 * program.count(self._resident[0])))):
                next(feed.batches)
            return watch(feed.batches, self._step, program.count, self._seconds, 1, feed.starts_epoch, len(paths) // 2), resident

    def _warm_up(self, step: Step) -> None:
        """Uses up the batches that were made before the window."""
        begin = time.monotonic()
        for _ in range(self._program.in_flight):
            step(next(self._feed.batches))
            if time.monotonic() - begin > _MAX_WARM_UP_S:
                return

    def _watch(self, batches: Iterator[Any], step: Step, starts_epoch: Callable[[], bool] = lambda: False) -> Window:
        return watch(batches, step, self._program.count, self._seconds, self._least, starts_epoch)


def busy_share(step: Callable[[], object]) -> float:
    """The share of the time in which the GPU ran at least one kernel or copy, over a few steps."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        begin = time.monotonic()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        seconds = time.monotonic() - begin
    spans = [(event.time_range.start, event.time_range.end) for event in profiled.events() if event.device_time_total > 0]
    return covered(spans) / 1e6 / seconds


def covered(spans: list[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def count_syncs(step: Callable[[], object]) -> int:
    """How often one step makes the host wait for the GPU, as far as PyTorch knows (torch.cuda.set_sync_debug_mode)."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("called a synchronizing" in str(each.message) for each in caught)


def copy_seconds(nbytes: int, pinned: bool, times: int = 5) -> float:
    """The time to copy this many bytes to the current GPU."""
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    target.copy_(source)
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(times):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return (time.monotonic() - begin) / times
