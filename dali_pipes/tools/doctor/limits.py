"""System limits for a process with many workers."""

import os
import resource
from pathlib import Path

from dali_pipes.tools.doctor.finding import Finding, ok, warning
from dali_pipes.tools.doctor.units import size

SHM = Path("/dev/shm")
INFINIBAND = Path("/sys/class/infiniband")
FILES_OF_A_PROCESS = 256  # libraries, device files, logs, pipes
FILES_OF_A_WORKER = 20  # 10 in training and 10 in evaluation, counted with prefetch_factor=2


def shared_memory(workers: int, batch_size: int) -> Finding:
    """/dev/shm against the need of loader=torch's workers: two uint8 batches of 224 × 224 pixels each."""
    need = workers * 2 * batch_size * 3 * 224 * 224
    state = os.statvfs(SHM)
    total, free = state.f_blocks * state.f_frsize, state.f_bavail * state.f_frsize
    room = f"{size(free)} of {size(total)} free in {SHM}"
    if free >= need:
        return ok(room)
    return warning(
        f"{room}; {workers} workers of loader=torch need {size(need)} at batch_size={batch_size} and would end with a bus error",
        f"start the container with --shm-size={-(-need // 2**30)}g or --ipc=host, or use loader=dali, which needs none",
    )


def locked_memory() -> Finding:
    """RLIMIT_MEMLOCK; memory that CUDA locks for copies to a GPU does not count against it, memory that InfiniBand locks does."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        return ok("no limit")
    adapters = sorted(path.name for path in INFINIBAND.iterdir()) if INFINIBAND.is_dir() else []
    if not adapters:
        return ok(f"{size(limit)}; only InfiniBand would need more, and there is none")
    return warning(
        f"{size(limit)}, and there is InfiniBand ({', '.join(adapters)}), through which NCCL needs more",
        "ulimit -l unlimited; --ulimit memlock=-1 of a container; LimitMEMLOCK=infinity of a service",
    )


def open_files(workers: int) -> Finding:
    """RLIMIT_NOFILE against the files that a process with these workers opens: pipes, and one for each tensor in flight."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = FILES_OF_A_PROCESS + workers * FILES_OF_A_WORKER
    if soft == resource.RLIM_INFINITY or soft >= need:
        return ok("no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}")
    higher = "" if hard == resource.RLIM_INFINITY or hard >= need else f"; the hard limit is {hard:,}, which root can raise"
    return warning(f"{soft:,}; about {need:,} are needed with {workers} workers", f"ulimit -n {max(need, 65536)}{higher}")
