"""CPU limits of this process."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc/self")


def available_cpus() -> int:
    """Whole cores that affinity and the cgroup's quota allow this process, at least 1."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, int(cpu_quota() or cores)))


def cpu_quota() -> float | None:
    """Cores allowed by the quota of this process's cgroup (v1 or v2) or of one above it; None without a limit."""
    return min((quota for folder in [*cgroup_folders(), *cgroup_folders("cpu")] for quota in _quotas(folder)), default=None)


def cgroup_folders(controller: str = "") -> list[Path]:
    """This process's cgroup and those above it, as far as they can be seen, the nearest first; empty where there is none.

    Args:
        controller: of v1, such as "cpu" or "memory"; "": v2.
    """
    try:
        groups = (PROC / "cgroup").read_text().splitlines()
        mounts = (PROC / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    paths = [path for _, names, path in (line.split(":", 2) for line in groups) if controller in names.split(",")]
    tops = [top for line in mounts for top in _cgroup_mount(line, controller)]
    if not paths or not tops:
        return []
    path, (root, top) = Path(paths[0]), tops[0]
    folder = top / path.relative_to(root) if path.is_relative_to(root) else top  # a container may see only its own group
    return [level for level in (folder, *folder.parents) if level.is_relative_to(top)]


def _cgroup_mount(line: str, controller: str) -> Iterator[tuple[Path, Path]]:
    """The group that a line of mountinfo mounts, and where, if it is the controller's."""
    left, right = line.split(" - ", 1)
    kind, _, options = right.split(" ", 2)
    if (kind == "cgroup" and controller in options.split(",")) or (kind == "cgroup2" and not controller):
        root, top = left.split(" ")[3:5]
        yield Path(root), Path(top)


def _quotas(folder: Path) -> Iterator[float]:
    """None or one; v2 keeps quota and period in one file, v1 in two."""
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with contextlib.suppress(OSError, ValueError):  # "max" is not a number
            quota, period = map(int, " ".join((folder / name).read_text() for name in names).split())
            if quota > 0:
                yield quota / period
