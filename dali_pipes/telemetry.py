"""CPU time and memory of this process and all its descendants."""

import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil


def cpu_seconds() -> float:
    """User and system seconds of this process, its living descendants, and every child that has ended."""
    total = 0.0
    for process in _tree():
        try:
            total += sum(process.cpu_times()[:4])  # user, system, and both of the children it has waited for
        except psutil.NoSuchProcess:
            continue
    return total


def memory_mib() -> float:
    """Proportional set size of this process and its descendants: memory shared by several counts once. In MiB."""
    total = 0
    for process in _tree():
        try:
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        except (OSError, ValueError):
            continue
        total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def _tree() -> list[psutil.Process]:
    me = psutil.Process(os.getpid())
    return [me, *me.children(recursive=True)]


class PeakMemory:
    """Samples `memory_mib` while the block runs; `mib` is the largest value seen."""

    def __init__(self, every_s: float = 1.0):
        self.mib = 0.0
        self._every_s, self._done = every_s, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while True:
            self.mib = max(self.mib, memory_mib())
            if self._done.wait(self._every_s):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        self.mib = max(self.mib, memory_mib())
