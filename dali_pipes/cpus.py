"""How much CPU this process may use."""

import os
from pathlib import Path


def available_cpus() -> int:
    """Whole cores that affinity and the cgroup's quota (v2) leave to this process, at least 1."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, int(_cgroup_quota() or cores)))


def cgroup_folders() -> list[Path]:
    """This process's cgroup (v2) and those above it, the nearest first; empty where there is none."""
    try:
        relative = Path("/proc/self/cgroup").read_text().split("0::", 1)[1].splitlines()[0].lstrip("/")
    except (OSError, IndexError):
        return []
    folder, top = Path("/sys/fs/cgroup", relative), Path("/sys/fs/cgroup")
    return [level for level in (folder, *folder.parents) if level.is_relative_to(top)]


def _cgroup_quota() -> float | None:
    """Cores allowed by cpu.max of this process's cgroup or of one above it; None without a limit."""
    quotas = []
    for folder in cgroup_folders():
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)
