"""How much of the machine's CPU this process may use."""

import os

from dali_pipes.system.cpus import cpu_quota
from dali_pipes.system.telemetry import throttled_seconds
from dali_pipes.tools.doctor.finding import Finding, ok, warning


def cores() -> Finding:
    """Affinity against the machine's cores."""
    mine, all_of_them = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    if mine < all_of_them:
        return warning(
            f"this process may run on {mine} of the machine's {all_of_them} cores",
            "affinity limits it: taskset, --cpuset-cpus of a container, --cpus-per-task of SLURM; harmless if intended",
        )
    return ok(f"all {all_of_them} of the machine's cores")


def quota() -> Finding:
    """The CPU quota of the cgroup (v1 or v2) against the cores that affinity leaves."""
    allowed, mine, denied = cpu_quota(), len(os.sched_getaffinity(0)), throttled_seconds()
    so_far = f"; kept from running for {denied:.1f} s so far" if denied else ""
    if allowed is None:
        return ok("no limit")
    if allowed >= mine:
        return ok(f"{allowed:g} cores, no less than the {mine} it may run on{so_far}")
    return warning(
        f"{allowed:g} of the {mine} cores it may run on{so_far}",
        "loaders here count it, libraries that start a thread a core do not: raise it (--cpus of a container, the CPU limit of a "
        f"pod) or set OMP_NUM_THREADS={max(1, int(allowed))}",
    )
