"""Memory that the host and the cgroup have left."""

import psutil

from dali_pipes.system.memory import memory_left
from dali_pipes.tools.doctor.finding import Finding, ok, warning
from dali_pipes.tools.doctor.units import size

TIGHT = 4 * 2**30


def memory() -> Finding:
    """Free memory against the need of a process with CUDA, DALI and workers."""
    total, left = psutil.virtual_memory().total, memory_left()
    amounts = f"{size(left)} left, of {size(total)} on this machine"
    if left >= TIGHT:
        return ok(amounts)
    return warning(amounts, f"less than {size(TIGHT)}: fewer workers and smaller batches, or raise the container's memory limit")
