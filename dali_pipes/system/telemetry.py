"""Measures the resources that a process and its descendants use: CPU time, memory, threads, GPUs,
and how long a cgroup's quota throttled them.

The functions take one figure now; a `Sampler` takes all of them again and again, in a thread.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Required, Self, TypedDict

import psutil

from dali_pipes.system.cpus import cgroup_folders, cgroup_stat
from dali_pipes.system.nvml import Gpu

MIB = 2**20
# shares of one core that PSS, and all other samples, may cost: together under the promised 1 %
COST = 0.004


def cpu_seconds(root: int | None = None) -> float:
    """User and system seconds of a process (by default this one), its living descendants, and all
    children that have ended.
    """
    return sum((_cpu(process) for process in _tree(root)), 0.0)


def queued_seconds(root: int | None = None) -> float:
    """How many seconds the living threads of a process and its descendants were ready to run and
    had no core; 0 if unknown.
    """
    total = 0
    for process in _tree(root):
        # on a core, waiting for one (both in nanoseconds), and how often it had one
        for file in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            # the thread has ended, or the kernel keeps no such figures
            with contextlib.suppress(OSError, ValueError):
                total += int(file.read_text().split()[1])
    return total / 1e9


def throttled_seconds() -> float | None:
    """How many seconds quotas kept this process's cgroup (v1 or v2) and those above it from
    running; None if unknown.
    """
    stats = [cgroup_stat(folder, "cpu") for folder in [*cgroup_folders(), *cgroup_folders("cpu")]]
    units = {"throttled_usec": 1e6, "throttled_time": 1e9}  # v2, v1
    values = [stat[name] / unit for stat in stats for name, unit in units.items() if name in stat]
    return sum(values) if values else None


def cgroup_cpu_seconds(root: int) -> float | None:
    """CPU seconds of this process's cgroup (v2); None if it has other processes than `root`, its
    descendants and its parents.
    """
    ours = {process.pid for process in _tree(root)} | {
        process.pid for process in psutil.Process(root).parents()
    }

    # the process's own cgroup, which is the first; those above it hold other programs too
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
    """The state of the watched processes at one moment.

    Attributes:
        at: time.monotonic().
        pss_mib: proportional set size, which counts memory that processes share once; taken with
            the last sample, and before that as often as its cost allows.
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
    """Watches processes from outside while the block runs. It takes at most 1 % of one core; `cost`
    says how much it took.

    Args:
        roots: numbers of processes, whose descendants are watched with them.

    Attributes:
        gpus: the GPUs that they use; set it as soon as they are known.
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
        """CPU seconds that the sampling itself took, for each second that it ran."""
        return (self._spent + self._spent_on_pss) / (time.monotonic() - self._started)

    def sample(self) -> float:
        """Takes a sample now, and returns the CPU seconds that it took. Called at the start of what
        is measured, since energy is counted from a sample on.
        """
        return self._take()[1]

    def _take(self) -> tuple[Sample, float]:
        """Takes a sample, and returns it with the CPU seconds that it took."""
        # the caller's thread and the sampling thread may both be here
        with self._one_at_a_time:
            start = time.thread_time()

            processes = [process for root in self._roots for process in _tree(root)]
            sample: Sample = {
                "at": time.monotonic(),
                "cpu_s": sum(map(_cpu, processes)),
                "rss_mib": sum(
                    _figure(lambda one: one.memory_info().rss, process) for process in processes
                )
                / MIB,
                "threads": sum(
                    _figure(psutil.Process.num_threads, process) for process in processes
                ),
                "processes": len(processes),
                "throttled_s": throttled_seconds(),
                "gpus": [gpu.sample() for gpu in self.gpus],
            }

            # without processes there is nothing to report: they have ended
            if processes:
                self.samples.append(sample)
            cost = time.thread_time() - start
            self._spent += cost
            return sample, cost

    def _run(self) -> None:
        pss_cost = 0.1  # s, until one is measured; as much is reserved for the one at the end
        while not self._done.wait(self._every_s):
            sample, cost = self._take()
            if self._spent_on_pss + 2 * pss_cost <= COST * (time.monotonic() - self._started):
                pss_cost = self._add_pss(sample)
            self._done.wait(cost / COST - self._every_s)  # longer, after an expensive sample

        sample, _ = self._take()
        self._add_pss(sample)

    def _add_pss(self, sample: Sample) -> float:
        """Adds the PSS to a sample that was just taken, and returns the CPU seconds that it took.

        The caller's thread may take another sample meanwhile.
        """
        # PSS is expensive, since the kernel walks over all pages of a process
        start = time.thread_time()
        pss = sum(
            _figure(lambda one: one.memory_full_info().pss, process)
            for root in self._roots
            for process in _tree(root)
        )
        if pss:
            sample["pss_mib"] = pss / MIB

        cost = time.thread_time() - start
        self._spent_on_pss += cost
        return cost

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()


def _tree(root: int | None) -> Iterator[psutil.Process]:
    try:
        process = psutil.Process(root or os.getpid())
        yield from [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return


def _cpu(process: psutil.Process) -> float:
    # user and system time, of itself and of the children that it waited for
    return float(_figure(lambda one: sum(one.cpu_times()[:4]), process))


def _figure(read: Any, process: psutil.Process) -> Any:
    # the process may have ended since it was listed, or may be another user's
    try:
        return read(process)
    except psutil.Error:
        return 0
