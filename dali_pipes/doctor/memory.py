"""Memory that the host and the cgroup leave, for workers and for the page cache."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from dali_pipes.cpus import cgroup_folders
from dali_pipes.doctor.finding import Finding, ok, warning
from dali_pipes.doctor.units import size

TIGHT = 4 * 2**30
# controller of /proc/self/cgroup, files for limit and use, and in memory.stat the page cache and what of it cannot be dropped
_VERSIONS = [
    ("", "memory.max", "memory.current", "file", "shmem"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"),
]


def memory() -> Finding:
    """What is left, against what a process with CUDA, DALI and workers takes."""
    total, left = psutil.virtual_memory().total, memory_left()
    told = f"{size(left)} left, of {size(total)} on this machine"
    if left >= TIGHT:
        return ok(told)
    return warning(told, f"less than {size(TIGHT)}: fewer workers and smaller batches, or raise the container's memory limit")


def memory_left() -> int:
    """Bytes this process can still have: of the host, and of every cgroup (v1, v2) it is in; page cache counts as free."""
    return max(0, min([psutil.virtual_memory().available, *_left_in_cgroups()]))


def _left_in_cgroups() -> Iterator[int]:
    for controller, limit, used, cache, kept in _VERSIONS:
        for folder in cgroup_folders(controller):
            with contextlib.suppress(OSError, ValueError, KeyError):  # "max" is no number, and a top group has no files
                stat = _stat(folder)
                yield int((folder / limit).read_text()) - int((folder / used).read_text()) + stat[cache] - stat[kept]


def _stat(folder: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in (folder / "memory.stat").read_text().splitlines())}
