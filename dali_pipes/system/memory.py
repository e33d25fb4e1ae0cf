"""Free memory on the host, in /dev/shm and on the GPU, and a check that raises if what a run needs
cannot fit.
"""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import psutil
import torch

from dali_pipes.errors import ConfigError
from dali_pipes.system.cpus import cgroup_folders, cgroup_stat

GIB = 2**30
SHM = "/dev/shm"
# for cgroups v2 and v1: the controller in /proc/self/cgroup, the files of limit and use, and the
# names in memory.stat of the page cache and of the part of it that cannot be dropped
_CGROUP_VERSIONS = [
    ("", "memory.max", "memory.current", "file", "shmem"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"),
]


@dataclass(frozen=True, slots=True)
class Need:
    """One use of memory.

    Attributes:
        what: a few words, with the numbers behind the size.
        where: "host", "shm" (which is part of the host's) or "gpu".
        bytes: a lower bound.
        option: the option that makes it smaller.
    """

    what: str
    where: str
    bytes: int
    option: str


def check_fits(needs: Sequence[Need], free: dict[str, int]) -> None:
    """Raises only for what could not have run. A run that passes may still run out of memory, since
    only certain needs are counted.

    Args:
        free: bytes for each place, as from `free_memory`; a place that is not in it is not checked.

    Raises:
        ConfigError: the needs of one place are larger than its free memory; the text has them with
            their sizes, and what to make smaller.
    """
    # what is in /dev/shm takes up the host's memory as well
    for where, there in free.items():
        here = [
            need
            for need in needs
            if need.where == where or (where == "host" and need.where == "shm")
        ]
        here.sort(key=attrgetter("bytes"))
        total = sum(need.bytes for need in here)

        if total > there:
            parts = "; ".join(f"{need.what}: {need.bytes / GIB:.2f} GiB" for need in reversed(here))
            place = {"host": "of memory", "shm": f"in {SHM}", "gpu": "on the GPU"}[where]
            raise ConfigError(
                f"this needs at least {total / GIB:.2f} GiB {place}, and {there / GIB:.2f} "
                f"GiB are free ({parts}); "
                f"make {here[-1].option} smaller"
                + (f", or {SHM} larger (docker --shm-size)" if where == "shm" else "")
            )


def free_memory(ranks: int = 1) -> dict[str, int]:
    """Free bytes for each of `ranks` processes that share this machine: of the host, of /dev/shm,
    and of the current GPU, which a process has for itself.
    """
    free = {"host": memory_left() // ranks} | free_shared_memory(ranks)
    if torch.cuda.is_available():
        free["gpu"] = torch.cuda.mem_get_info()[0]
    return free


def free_shared_memory(ranks: int = 1) -> dict[str, int]:
    """`free_memory` of /dev/shm alone, for which no GPU is asked."""
    with contextlib.suppress(OSError):
        return {"shm": shutil.disk_usage(SHM).free // ranks}
    return {}


def memory_left() -> int:
    """How many bytes this process can still take: the least of what the host and each of its
    cgroups (v1, v2) have left. Page cache counts as free.
    """
    return max(0, min([psutil.virtual_memory().available, *_left_in_cgroups()]))


def _left_in_cgroups() -> Iterator[int]:
    for controller, limit, used, cache, kept in _CGROUP_VERSIONS:
        for folder in cgroup_folders(controller):
            # "max" is not a number, and a top group has no files
            with contextlib.suppress(OSError, ValueError, KeyError):
                stat = cgroup_stat(folder, "memory")
                yield (
                    int((folder / limit).read_text())
                    - int((folder / used).read_text())
                    + stat[cache]
                    - stat[kept]
                )
