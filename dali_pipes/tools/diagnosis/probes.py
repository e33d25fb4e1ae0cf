"""The parts of a training program, each run alone, then together.

Ingest, prep and fetch stalls as in Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training (VLDB 2021), section 3.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from dali_pipes.system.page_cache import evict, resident_share
from dali_pipes.tools.diagnosis.program import Feed, TrainingProgram
from dali_pipes.tools.diagnosis.window import Step, Window, watch

RESIDENT = 4  # batches
LARGER = 4  # times
COLD_BATCHES = 8  # of fewer, the start would be most of what is measured
_MAX_WARM_UP_S = 15.0


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
        self._warm_up(_nothing)
        batches, longest = self._feed.batches, 0.0

        def remembering() -> Iterator[Any]:
            nonlocal longest
            while True:
                first, before = self._feed.starts_epoch(), time.monotonic()
                batch = next(batches)
                if not first and time.monotonic() - before > longest:
                    longest, self.slowest = time.monotonic() - before, batch
                yield batch

        return self._watch(remembering(), _nothing, self._feed.starts_epoch)

    def together(self) -> Window:
        self._warm_up(self._step)
        return self._watch(self._feed.batches, self._step, self._feed.starts_epoch)

    def model_under_load(self) -> Window:
        if not self._program.in_flight:  # the training's own thread loads, between its steps: nothing runs beside them
            return self.model()
        with _drained(self._feed.batches) as take:

            def step(batch: Any) -> None:
                take()
                self._step(batch)

            return self._watch(itertools.cycle(self._resident), step)

    def cold(self) -> tuple[Window, float | None] | None:
        """Training on files that are not in the page cache, and the share of them that still was; None if unknown or too few.

        The loader has been started, its prefetched batches are used up, and no file is counted twice.
        """
        program, paths = self._program, self._program.paths
        if len(paths) < COLD_BATCHES * program.count(self._resident[0]):
            return None
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


def _nothing(batch: Any) -> None:
    """A loader's batch is ready as soon as it is delivered."""


@contextlib.contextmanager
def _drained(batches: Iterator[Any]) -> Iterator[Callable[[], None]]:
    """A thread that takes and drops one batch for each request; a request while it is busy is served afterwards."""
    wanted, done = threading.Semaphore(0), threading.Event()

    def drain() -> None:
        if torch.cuda.is_available():
            torch.cuda.set_device(device)  # the current device is per thread
        while wanted.acquire() and not done.is_set():
            next(batches)

    device = torch.cuda.current_device() if torch.cuda.is_available() else None
    with ThreadPoolExecutor(1) as pool:
        draining = pool.submit(drain)
        try:
            yield wanted.release
        finally:
            done.set()
            wanted.release()
        draining.result()
