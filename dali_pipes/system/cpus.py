"""Which CPUs this process may use: its affinity, the quotas of its cgroups, and the CPUs that are
near to a GPU.

Other modules read figures of cgroups by `cgroup_folders` and `cgroup_stat`.
"""

import contextlib
import os
from collections.abc import Iterator, Set
from pathlib import Path

from dali_pipes.errors import ConfigError

PROC = Path("/proc/self")
PCI_DEVICES = Path("/sys/bus/pci/devices")


def available_cpus() -> int:
    """How many whole cores affinity and the cgroups' quotas allow this process, at least 1."""
    cores = affinity_cores()
    return max(1, min(cores, int(cpu_quota() or cores)))


def affinity_cores() -> int:
    """How many cores this process may run on, however little time a quota leaves it there."""
    return len(os.sched_getaffinity(0))


@contextlib.contextmanager
def start_on_cpus(cpus: Set[int]) -> Iterator[None]:
    """Lets threads and processes that are started within the block inherit these CPUs, and with
    them the NUMA node of the memory that they touch first.

    Raises:
        ConfigError: this process may use none of these CPUs.
    """
    # the affinity of this thread, which those that it starts inherit
    before = os.sched_getaffinity(0)
    if not before & cpus:
        raise ConfigError(
            f"cpus {format_cpus(cpus)}: this process may use none of them, only "
            f"{format_cpus(before)}"
        )

    os.sched_setaffinity(0, before & cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def parse_cpus(text: str) -> frozenset[int]:
    """Parses a list of CPUs such as 0-3,8, as taskset and the kernel write it; ConfigError for
    anything else.
    """
    cpus = set[int]()
    for part in str(text).strip().split(","):
        first, dash, last = part.strip().partition("-")
        if (
            not first.isdecimal()
            or (dash and not last.isdecimal())
            or int(last or first) < int(first)
        ):
            raise ConfigError(f"{text!r} is no list of CPUs; write it as taskset does: 0-3,8")
        cpus |= set(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def format_cpus(cpus: Set[int]) -> str:
    """Writes CPUs as a list that `parse_cpus` reads."""
    starts = [cpu for cpu in sorted(cpus) if cpu - 1 not in cpus]
    ends = [cpu for cpu in sorted(cpus) if cpu + 1 not in cpus]
    return ",".join(
        f"{start}-{end}" if end > start else str(start)
        for start, end in zip(starts, ends, strict=True)
    )


def cpus_near(domain: int, bus: int, device: int) -> frozenset[int]:
    """The CPUs of the NUMA node that a PCI device is attached to; empty if the kernel does not
    say.
    """
    try:
        text = (
            PCI_DEVICES / f"{domain:04x}:{bus:02x}:{device:02x}.0" / "local_cpulist"
        ).read_text()
    except OSError:
        return frozenset()
    return parse_cpus(text) if text.strip() else frozenset()


def cpu_quota() -> float | None:
    """How many cores the quotas of this process's cgroup (v1 or v2) and of those above it allow,
    the smallest of them; None without a limit.
    """
    return min(
        (
            quota
            for folder in [*cgroup_folders(), *cgroup_folders("cpu")]
            for quota in _quotas(folder)
        ),
        default=None,
    )


def cgroup_folders(controller: str = "") -> list[Path]:
    """The folders of this process's cgroup and of those above it, upwards, as far as they can be
    seen. `controller` is one of v1, such as "cpu", or "" for v2.
    """
    try:
        groups = (PROC / "cgroup").read_text().splitlines()
        mounts = (PROC / "mountinfo").read_text().splitlines()
    except OSError:
        return []

    # lines of /proc/self/cgroup are NUMBER:CONTROLLERS:PATH; v2 has no controllers there
    paths = [
        path
        for _, names, path in (line.split(":", 2) for line in groups)
        if controller in names.split(",")
    ]
    tops = [top for line in mounts for top in _cgroup_mount(line, controller)]
    if not paths or not tops:
        return []

    path, (root, top) = Path(paths[0]), tops[0]
    # in a container the mount may show only the container's own group, as its top
    folder = top / path.relative_to(root) if path.is_relative_to(root) else top
    return [level for level in (folder, *folder.parents) if level.is_relative_to(top)]


def cgroup_stat(folder: Path, controller: str) -> dict[str, int]:
    """The figures of a cgroup's cpu.stat or memory.stat; empty if it has none."""
    try:
        lines = (folder / f"{controller}.stat").read_text().splitlines()
        return {name: int(value) for name, value in map(str.split, lines)}
    except (OSError, ValueError):
        return {}


def _cgroup_mount(line: str, controller: str) -> Iterator[tuple[Path, Path]]:
    """Yields the group that a line of mountinfo mounts, and where, if it is the controller's."""
    # ID PARENT DEVICE ROOT MOUNTPOINT OPTIONS … - TYPE SOURCE OPTIONS: proc_pid_mountinfo(5)
    left, right = line.split(" - ", 1)
    kind, _, options = right.split(" ", 2)
    if (kind == "cgroup" and controller in options.split(",")) or (
        kind == "cgroup2" and not controller
    ):
        root, top = left.split(" ")[3:5]
        yield Path(root), Path(top)


def _quotas(folder: Path) -> Iterator[float]:
    """Yields a cgroup's quota in cores, if it has one."""
    # v2 keeps quota and period in one file, v1 in two, where -1 means no limit
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with contextlib.suppress(OSError, ValueError):  # "max" is not a number
            quota, period = map(
                int, " ".join((folder / name).read_text() for name in names).split()
            )
            if quota > 0:
                yield quota / period
