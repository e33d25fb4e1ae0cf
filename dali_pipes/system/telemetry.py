"""Resource use of a process tree: CPU time, memory, threads, throttling by its cgroup, and GPU
use.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Required, Self, TypedDict

import psutil

from dali_pipes.system.cpus import cgroup_folders, cgroup_stat
from dali_pipes.system.nvml import Gpu

MIB = 2**20
COST = 0.004  # of one core, for PSS and for all other samples: together under the promised 1 %


def cpu_seconds(root: int | None = None) -> float:
    """User and system seconds of a process, its living descendants, and every child that has ended;
    of this one by default.
    """
    return sum((_cpu(process) for process in _tree(root)), 0.0)


def queued_seconds(root: int | None = None) -> float:
    """How long the living threads of a process and its descendants have been ready to run and had
    no core; 0 if unknown.
    """
    total = 0
    for process in _tree(root):
        for file in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            # the thread has ended, or the kernel keeps no such figures
            with contextlib.suppress(OSError, ValueError):
                total += int(file.read_text().split()[1])
    return total / 1e9


def throttled_seconds() -> float | None:
    """How long quotas kept this process's cgroup (v1 or v2) and those above it from running; None
    if unknown.
    """
    stats = [cgroup_stat(folder, "cpu") for folder in [*cgroup_folders(), *cgroup_folders("cpu")]]
    units = {"throttled_usec": 1e6, "throttled_time": 1e9}  # v2, v1
    found = [stat[name] / unit for stat in stats for name, unit in units.items() if name in stat]
    return sum(found) if found else None


def cgroup_cpu_seconds(root: int) -> float | None:
    """CPU seconds of this process's cgroup (v2); None unless all processes in it are `root`, its
    descendants and those above it.
    """
    ours = {process.pid for process in _tree(root)} | {
        process.pid for process in psutil.Process(root).parents()
    }
    for folder in cgroup_folders()[:1]:
        try:
            inside = {
                int(pid)
                for file in folder.rglob("cgroup.procs")
                for pid in file.read_text().split()
            }
        except OSError:
            return None
        stat = cgroup_stat(folder, "cpu")
        if inside <= ours and "usage_usec" in stat:
            return stat["usage_usec"] / 1e6
    return None


class Sample(TypedDict, total=False):
    """The state of the watched processes.

    Attributes:
        at: time.monotonic().
        pss_mib: counts memory that processes share once; taken with the last sample, and as often
            as the cost allows.
    """

    at: Required[float]
    cpu_s: Required[float]
    rss_mib: Required[float]
    threads: Required[float]
    processes: Required[int]
    throttled_s: Required[float | None]
    gpus: Required[list[dict[str, Any]]]
    pss_mib: float


class Sampler:
    """Watches processes from outside while the block runs; it takes at most 1 % of one core, and
    `cost` says how much it took.

    Args:
        roots: processes whose descendants are watched with them.

    Attributes:
        gpus: GPUs that they use, as soon as known.
    """

    def __init__(self, roots: Sequence[int], every_s: float = 1.0):
        self.samples: list[Sample] = []
        self.gpus: Sequence[Gpu] = ()
        self._roots, self._every_s = roots, every_s
        self._spent = self._spent_on_pss = 0.0
        self._started = time.monotonic()
        self._done = threading.Event()
        self._one_at_a_time = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def cost(self) -> float:
        """CPU seconds of the sampling itself, for each second that it ran."""
        return (self._spent + self._spent_on_pss) / (time.monotonic() - self._started)

    def sample(self) -> float:
        """Takes a sample now, as at the start of a window: energy is counted from there. Returns
        the CPU seconds it took.
        """
        with self._one_at_a_time:
            start = time.thread_time()
            processes = [process for root in self._roots for process in _tree(root)]
            sample: Sample = {
                "at": time.monotonic(),
                "cpu_s": sum(map(_cpu, processes)),
                "rss_mib": sum(
                    _figure(lambda each: each.memory_info().rss, process) for process in processes
                )
                / MIB,
                "threads": sum(
                    _figure(psutil.Process.num_threads, process) for process in processes
                ),
                "processes": len(processes),
                "throttled_s": throttled_seconds(),
                "gpus": [gpu.sample() for gpu in self.gpus],
            }
            if processes:
                self.samples.append(sample)
            cost = time.thread_time() - start
            self._spent += cost
            return cost

    def _run(self) -> None:
        pss_cost = 0.1  # the same again is reserved for the last one
        while not self._done.wait(self._every_s):
            cost = self.sample()
            if self._spent_on_pss + 2 * pss_cost <= COST * (time.monotonic() - self._started):
                pss_cost = self._sample_pss()
            self._done.wait(cost / COST - self._every_s)
        self.sample()
        self._sample_pss()

    def _sample_pss(self) -> float:
        start = time.thread_time()
        pss = sum(
            _figure(lambda each: each.memory_full_info().pss, process)
            for root in self._roots
            for process in _tree(root)
        )
        if self.samples and pss:
            self.samples[-1]["pss_mib"] = pss / MIB
        cost = time.thread_time() - start
        self._spent_on_pss += cost
        return cost

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()


def _tree(root: int | None) -> Iterator[psutil.Process]:
    try:
        process = psutil.Process(root or os.getpid())
        yield from [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return


def _cpu(process: psutil.Process) -> float:
    # of itself and of children it waited for
    return float(_figure(lambda each: sum(each.cpu_times()[:4]), process))


def _figure(read: Any, process: psutil.Process) -> Any:
    try:
        return read(process)
    except psutil.Error:
        return 0
