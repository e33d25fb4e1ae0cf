"""Measures one `Span`: times each step, and reads the machine's counters before and after."""

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from dali_pipes.system.cuda import mark, seconds_between
from dali_pipes.system.telemetry import cpu_seconds, queued_seconds, throttled_seconds
from dali_pipes.tools.diagnosis.measuring.span import Span
from dali_pipes.tools.diagnosis.measuring.training import Training


def measure_span(
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

        # what the clock shows beyond this thread's own time is time in which the step was blocked
        clock, ran, begun = time.monotonic(), _thread_seconds(), mark() if on_gpu else None
        if trains and (yield batch):
            # the loop was left: what a program does between two rounds of it, such as a validation,
            # is no part of training
            left_s += time.monotonic() - asked
            runs.append([])
            continue
        blocked += time.monotonic() - clock - (_thread_seconds() - ran)
        runs[-1].append((begun, mark() if on_gpu else None))
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
        # threads that have ended meanwhile are no longer counted
        queued_s=max(0.0, grown["queued_s"]),
        # the kernel counts this time in ticks, and a short span may hold none
        busy=grown["busy_s"] / max(grown["total_s"], 1e-9),
        throttled_s=grown["throttled_s"],
        memory_stall=None if grown["stalled_s"] is None else grown["stalled_s"] / took,
        alloc_retries=round(grown["alloc_retries"]),
    )


def _counters() -> dict[str, Any]:
    """Returns what only grows; None: unknown on this machine."""
    times = psutil.cpu_times(percpu=True)
    ours = [times[core] for core in os.sched_getaffinity(0) if core < len(times)]
    total = sum(sum(time_[:8]) for time_ in ours)  # guest time is already part of user time

    return {
        "cpu_s": cpu_seconds(),
        "queued_s": queued_seconds(),
        "busy_s": total - sum(time_.idle + time_.iowait for time_ in ours),
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
    return tuple(seconds_between(end, begin) for (_, end), (begin, _) in itertools.pairwise(marks))


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
