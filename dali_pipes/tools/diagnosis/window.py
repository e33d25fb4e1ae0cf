"""One measured window of work: its speed, where its time went, and the machine's counters."""

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from dali_pipes.system.telemetry import cpu_seconds, throttled_seconds

Step = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Window:
    """The figures of one window. Times are in seconds.

    Attributes:
        images, seconds, cpu_s: images processed, elapsed time, and CPU time of this process and its children.
        waits_s: of each step, the time inside next(). None where the step began an epoch, which starts the loader anew.
        gaps_s: on a GPU, its idle time before each step but the first; else None.
        blocked_s: how long the step's thread neither ran nor waited for a core; None if the kernel does not report it.
        busy: the share of our cores that was busy, with any program.
        throttled_s: how long a CPU quota kept us from running; None if unknown.
        memory_stall: the share of the time that something on this machine waited for memory; None if unknown.
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

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / self.seconds

    @property
    def cores(self) -> float:
        """Those that were kept busy."""
        return self.cpu_s / self.seconds

    @property
    def wait_share(self) -> float:
        """The share of the time that the steps had to wait for batches, but for those that began an epoch.

        On a CPU that is what went into next(). On a GPU it is no more than the gaps between the steps: a host that has launched far
        ahead may wait without loss.
        """
        waited = sum(wait for wait in self.waits_s if wait is not None)
        if self.gaps_s is not None:
            waited = min(waited, sum(self.gaps_s))
        return waited / self.seconds


def watch(
    batches: Iterator[Any],
    step: Step,
    count: Callable[[Any], int],
    seconds: float,
    least: int,
    starts_epoch: Callable[[], bool],
    most: float = math.inf,
) -> Window:
    """Runs steps for at least `seconds` and `least` batches, but at most `most` images. On a GPU the clock stops when it is done.

    Args:
        count: how many images a batch holds.
        starts_epoch: called before each next(): whether it begins an epoch.
    """
    images, blocked, waits, starts = 0, 0.0, list[float](), list[bool]()
    on_gpu, marks = torch.cuda.is_available(), list[tuple[Any, Any]]()
    before, begin = _counters(), time.monotonic()
    while (time.monotonic() - begin < seconds or len(waits) < least) and (images < most or not waits):
        starts.append(starts_epoch())
        asked = time.monotonic()
        batch = next(batches)
        waits.append(time.monotonic() - asked)
        clock, ran, begun = time.monotonic(), _ran(), _mark(on_gpu)
        step(batch)
        blocked += time.monotonic() - clock - (_ran() - ran)
        marks.append((begun, _mark(on_gpu)))
        images += count(batch)
    if on_gpu:
        torch.cuda.synchronize()
    took, after = time.monotonic() - begin, _counters()
    grown: dict[str, Any] = {name: None if None in (before[name], after[name]) else after[name] - before[name] for name in before}
    skips_starts = sum(starts) * 2 <= len(starts)  # with epochs of one or two batches, epoch starts are the normal case
    return Window(
        images=images,
        seconds=took,
        cpu_s=grown["cpu_s"],
        waits_s=tuple(None if first and skips_starts else wait for first, wait in zip(starts, waits, strict=True)),
        gaps_s=gaps(marks) if on_gpu else None,
        blocked_s=blocked if _ran() else None,
        busy=grown["busy_s"] / max(grown["total_s"], 1e-9),
        throttled_s=grown["throttled_s"],
        memory_stall=None if grown["stalled_s"] is None else grown["stalled_s"] / took,
        alloc_retries=grown["alloc_retries"],
    )


def _counters() -> dict[str, Any]:
    """What only grows; None: unknown on this machine."""
    times = psutil.cpu_times(percpu=True)
    ours = [times[core] for core in os.sched_getaffinity(0) if core < len(times)]
    total = sum(sum(each[:8]) for each in ours)  # guest time is already part of user time
    return {
        "cpu_s": cpu_seconds(),
        "busy_s": total - sum(each.idle + each.iowait for each in ours),
        "total_s": total,
        "throttled_s": throttled_seconds(),
        "stalled_s": _memory_stalled_s(),
        "alloc_retries": torch.cuda.memory_stats().get("num_alloc_retries", 0) if torch.cuda.is_available() else 0,
    }


def gaps(marks: Sequence[tuple[Any, Any]]) -> tuple[float, ...]:
    """Seconds between the end of each step and the beginning of the next, by the GPU's clock; all events have happened."""
    return tuple(end.elapsed_time(begin) / 1e3 for (_, end), (begin, _) in itertools.pairwise(marks))


def _mark(on_gpu: bool) -> Any:
    """An event on the current stream, read when the window is over, so that nothing waits for it."""
    if not on_gpu:
        return None
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()  # type: ignore[no-untyped-call]
    return event


def _ran() -> float:
    """Seconds that this thread has run, or waited for a core; 0 if the kernel does not report it."""
    try:
        ran, stood, _ = Path("/proc/thread-self/schedstat").read_text().split()
    except (OSError, ValueError):
        return 0.0
    return (int(ran) + int(stood)) / 1e9


def _memory_stalled_s() -> float | None:
    """Pressure stall information: docs.kernel.org/accounting/psi.html."""
    try:
        some = Path("/proc/pressure/memory").read_text().splitlines()[0]
    except OSError:
        return None
    return int(some.rsplit("total=", 1)[1]) / 1e6
