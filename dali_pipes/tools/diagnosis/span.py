"""One measured span of work: its speed, where its time went, and the machine's counters.

What trains is a generator of batches. Whoever drives it trains on each batch that it yields, once,
and then resumes it. The driver is `drive` with a function that trains, or the training loop of a
program that is run as it is, which takes these batches for its loader's. So everything happens in
the thread that trains, where a loader's worker processes have to be started.

`watch` measures one `Span`. A `Round` is one span of each part.
"""

import itertools
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch

from dali_pipes.system.telemetry import cpu_seconds, queued_seconds, throttled_seconds

T = TypeVar("T")
Step = Callable[[Any], object]
# yields batches to train on; is sent True if the loop was left in that step and has begun anew;
# returns what was found out
Training = Generator[Any, bool | None, T]


class LoopEnded(BaseException):
    """Thrown into what trains: the program's loop trains on no further batch.

    Not an Exception, so that no probe that survives errors survives it.

    Args:
        is_late: whether there is no time either for what needs no training.
    """

    def __init__(self, is_late: bool):
        super().__init__(is_late)
        self.is_late = is_late


def drive(work: Training[T], step: Step) -> T:
    """Trains on each batch that `work` yields, and returns its value."""
    while True:
        try:
            batch = next(work)
        except StopIteration as end:
            return end.value
        step(batch)


@dataclass(frozen=True, slots=True)
class Span:
    """The figures of one span, all times in seconds.

    Attributes:
        images, seconds, cpu_s: images processed, elapsed time, and CPU time of this process and its
            children.
        waits_s: the time inside next(), for each step; None for a step that began an epoch, which
            starts the loader anew.
        starts_s: the time inside next() of each step that began an epoch.
        epoch: number of batches of an epoch; None: unknown.
        gaps_s: on a GPU, its idle time before each step except the first; else None.
        blocked_s: how long the step's thread neither ran nor waited for a core; None if the kernel
            does not report it.
        queued_s: how long threads of this process and its children were ready to run and had no
            core, all of them added up.
        busy: the share of our cores that was busy, whatever the program.
        throttled_s: how long a CPU quota kept us from running; None if unknown.
        memory_stall: the share of the time that something on this machine waited for memory; None
            if unknown.
        alloc_retries: how often PyTorch had to free GPU memory to find room.
    """

    images: int
    seconds: float
    cpu_s: float
    waits_s: tuple[float | None, ...]
    gaps_s: tuple[float, ...] | None
    blocked_s: float | None
    busy: float
    throttled_s: float | None
    memory_stall: float | None
    alloc_retries: int
    starts_s: tuple[float, ...] = ()
    epoch: int | None = None
    queued_s: float = 0.0

    @property
    def rate(self) -> float:
        """Images per second, as over whole epochs: a span may hold more or fewer starts of epochs
        than belong to its steps.
        """
        return self.images / len(self.waits_s) / self._usual_step_s

    @property
    def start_share(self) -> float:
        """The share of the time that goes into starting epochs: what their first batch takes longer
        than another.
        """
        starts = sum(self.starts_s) - len(self.starts_s) * self._usual_wait_s

        if self.epoch and self.starts_s:
            return max(0.0, starts / len(self.starts_s) / self.epoch / self._usual_step_s)
        return max(0.0, starts / self.seconds)

    @property
    def wait_share(self) -> float:
        """The share of the time that the steps wait for batches, without what the starts of epochs
        take.

        On a CPU it is the time inside next(). On a GPU it is at most the gaps between the steps: a
        host that has launched far ahead may wait without loss.
        """
        waited = len(self.waits_s) * self._usual_wait_s
        if self.gaps_s is not None:
            waited = min(waited, sum(self.gaps_s))
        return min(1.0, waited / len(self.waits_s) / self._usual_step_s)

    @property
    def step_s(self) -> float:
        """Seconds of a step itself, without the wait for its batch."""
        waited = sum(self.starts_s) + sum(wait for wait in self.waits_s if wait is not None)
        return (
            self.seconds - (waited if self.gaps_s is None else min(waited, sum(self.gaps_s)))
        ) / len(self.waits_s)

    @property
    def _usual_step_s(self) -> float:
        """Seconds from step to step, including each step's share of the start of its epoch."""
        steps, starts = len(self.waits_s), sum(self.starts_s)
        if not self.epoch or not self.starts_s:
            return self.seconds / steps
        excess = starts - len(self.starts_s) * self._usual_wait_s
        return (self.seconds - excess) / steps + excess / len(self.starts_s) / self.epoch

    @property
    def _usual_wait_s(self) -> float:
        """Seconds that a step waits for a batch that is not the first of an epoch; 0 if there is no
        such batch.
        """
        waits = [wait for wait in self.waits_s if wait is not None]
        return sum(waits) / len(waits) if waits else 0.0

    def scaled(self, factor: float) -> "Span":
        """Returns the same work in so many times the time, for as much CPU time."""
        waits = tuple(None if wait is None else wait * factor for wait in self.waits_s)
        starts = tuple(start * factor for start in self.starts_s)
        return replace(self, seconds=self.seconds * factor, waits_s=waits, starts_s=starts)

    @property
    def cores(self) -> float:
        """How many cores were kept busy, on average."""
        return self.cpu_s / self.seconds


@dataclass(frozen=True, slots=True)
class Round:
    """One span of each part, one shortly after the other.

    Attributes:
        model: with batches that are on the device.
        loader: batches as fast as they come, nothing done with them.
        together: training.
    """

    model: Span
    loader: Span
    together: Span

    @property
    def steps(self) -> Span:
        """The model's span, at the fastest pace that was seen.

        Beside other programs a model that never waits uses up its share of the cores, and its
        threads then wait for each other. A step that follows a wait gets the cores at once: in
        training it is faster then, and that pace is taken.
        """
        factor = self.together.step_s / self.model.step_s
        return (
            replace(self.model.scaled(factor), cpu_s=self.model.cpu_s * factor)
            if 0 < factor < 1
            else self.model
        )


def watch(
    batches: Iterator[Any],
    count: Callable[[Any], int],
    seconds: float,
    least: int,
    starts_epoch: Callable[[], bool],
    most: float = math.inf,
    epoch: int | None = None,
    trains: bool = True,
) -> Training[Span]:
    """Takes steps for at least `seconds` and `least` batches, but at most `most` images.

    On a GPU the clock stops when it has done its work.

    Args:
        count: how many images a batch holds.
        starts_epoch: called before each next(): whether it begins an epoch.
        epoch: batches of an epoch, if known.
        trains: whether the batches are trained on; else they are dropped.
    """
    images, blocked, left_s, waits, starts = 0, 0.0, 0.0, list[float | None](), list[float]()
    on_gpu, runs = torch.cuda.is_available(), [list[tuple[Any, Any]]()]

    before, begin = _counters(), time.monotonic()
    while (time.monotonic() - begin - left_s < seconds or len(waits) < least) and (
        images < most or not waits
    ):
        first, asked = starts_epoch(), time.monotonic()
        batch = next(batches)
        waited = time.monotonic() - asked

        clock, ran, begun = time.monotonic(), _thread_seconds(), _mark(on_gpu)
        if trains and (yield batch):
            # the loop was left: what a program does between two rounds of it, such as a validation,
            # is no part of training
            left_s += time.monotonic() - asked
            runs.append([])
            continue
        blocked += time.monotonic() - clock - (_thread_seconds() - ran)
        runs[-1].append((begun, _mark(on_gpu)))
        waits.append(None if first else waited)
        starts += [waited] if first else []
        images += count(batch)

    if on_gpu:
        torch.cuda.synchronize()
    took, after = time.monotonic() - begin, _counters()
    # nobody read the counters when the loop was left: that time counts as if it were training
    within = 1 - left_s / took
    grown: dict[str, Any] = {
        name: None if None in (before[name], after[name]) else (after[name] - before[name]) * within
        for name in before
    }
    took *= within

    return Span(
        images=images,
        seconds=took,
        cpu_s=grown["cpu_s"],
        waits_s=tuple(waits),
        starts_s=tuple(starts),
        epoch=epoch,
        gaps_s=tuple(itertools.chain(*map(gaps, runs))) if on_gpu else None,
        blocked_s=blocked if _thread_seconds() else None,
        queued_s=max(0.0, grown["queued_s"]),
        busy=grown["busy_s"] / max(grown["total_s"], 1e-9),
        throttled_s=grown["throttled_s"],
        memory_stall=None if grown["stalled_s"] is None else grown["stalled_s"] / took,
        alloc_retries=round(grown["alloc_retries"]),
    )


def _counters() -> dict[str, Any]:
    """Returns what only grows; None: unknown on this machine."""
    times = psutil.cpu_times(percpu=True)
    ours = [times[core] for core in os.sched_getaffinity(0) if core < len(times)]
    total = sum(sum(each[:8]) for each in ours)  # guest time is already part of user time

    return {
        "cpu_s": cpu_seconds(),
        "queued_s": queued_seconds(),
        "busy_s": total - sum(each.idle + each.iowait for each in ours),
        "total_s": total,
        "throttled_s": throttled_seconds(),
        "stalled_s": _memory_stalled_s(),
        "alloc_retries": torch.cuda.memory_stats().get("num_alloc_retries", 0)
        if torch.cuda.is_available()
        else 0,
    }


def gaps(marks: Sequence[tuple[Any, Any]]) -> tuple[float, ...]:
    """Returns the seconds between the end of each step and the beginning of the next, by the GPU's
    clock.

    All events must have happened.
    """
    return tuple(
        end.elapsed_time(begin) / 1e3 for (_, end), (begin, _) in itertools.pairwise(marks)
    )


def _mark(on_gpu: bool) -> Any:
    """Returns an event on the current stream; it is read when the span is over, so that nothing
    waits for it.
    """
    if not on_gpu:
        return None
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()  # type: ignore[no-untyped-call]
    return event


def _thread_seconds() -> float:
    """Returns the seconds that this thread has run, or waited for a core; 0 if the kernel does not
    report them.
    """
    try:
        # nanoseconds on a core, nanoseconds in the run queue, time slices
        ran, stood, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return (int(ran) + int(stood)) / 1e9


def _memory_stalled_s() -> float | None:
    """Returns the seconds in which something waited for memory; None if the kernel does not report
    them.

    Pressure stall information: docs.kernel.org/accounting/psi.html.
    """
    try:
        some = Path("/proc/pressure/memory").read_text().splitlines()[0]
    except OSError:
        return None
    # microseconds
    return int(some.rsplit("total=", 1)[1]) / 1e6
