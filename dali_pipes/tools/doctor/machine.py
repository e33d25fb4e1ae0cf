"""Checks the CPU quota, the memory and the GPUs of this process.

Each check is a function that returns a `Finding`; run.py calls them in order.
"""

import os
import shutil
from pathlib import Path

import psutil
import torch

from dali_pipes.system.cpus import affinity_cores, cpu_quota
from dali_pipes.system.memory import memory_left
from dali_pipes.system.nvml import WITH_UTILITY, NoGpu, driver
from dali_pipes.system.telemetry import throttled_seconds
from dali_pipes.tools.doctor.report import Finding, failed, ok, size, warning

SHM = Path("/dev/shm")
TIGHT = 4 * 2**30  # bytes of free memory; less gives a warning
CPU_LOADERS = "CPU loaders work: loader=dali_cpu"


def quota() -> Finding:
    """Compares the CPU quota of the cgroup (v1 or v2) with the cores that affinity allows."""
    allowed, mine, denied = cpu_quota(), affinity_cores(), throttled_seconds()
    so_far = f"; kept from running for {denied:.1f} s so far" if denied else ""

    if allowed is None:
        return ok("no limit")
    if allowed >= mine:
        return ok(f"{allowed:g} cores, no less than the {mine} it may run on{so_far}")

    return warning(
        f"{allowed:g} of the {mine} cores it may run on{so_far}",
        "loaders here count it, libraries that start a thread a core do not: raise it "
        "(--cpus of a container, the CPU limit of a "
        f"pod) or set OMP_NUM_THREADS={max(1, int(allowed))}",
    )


def memory() -> Finding:
    """Compares free memory with what a process with CUDA, DALI and workers needs."""
    total, left = psutil.virtual_memory().total, memory_left()
    amounts = f"{size(left)} left, of {size(total)} on this machine"
    if left >= TIGHT:
        return ok(amounts)

    return warning(
        amounts,
        (
            f"less than {size(TIGHT)}: fewer workers and smaller batches, or raise the container's "
            "memory limit"
        ),
    )


def shared_memory(workers: int, batch_size: int) -> Finding:
    """Compares the space in /dev/shm with what the workers of loader=torch need.

    Each worker has two uint8 batches of 224 × 224 pixels there.
    """
    need = workers * 2 * batch_size * 3 * 224 * 224
    there = shutil.disk_usage(SHM)

    room = f"{size(there.free)} of {size(there.total)} free in {SHM}"
    if there.free >= need:
        return ok(room)

    return warning(
        (
            f"{room}; {workers} workers of loader=torch need {size(need)} at "
            f"batch_size={batch_size} and would end with a bus error"
        ),
        (
            f"start the container with --shm-size={-(-need // 2**30)}g or --ipc=host, or use "
            "loader=dali, which needs none"
        ),
    )


def driver_and_gpus() -> Finding:
    """Checks that PyTorch can compute on a GPU; if not, says what is missing or does not fit.

    One after the other: the driver, PyTorch's build, their CUDA versions, a visible GPU, a sum.
    """
    try:
        version, cuda = driver()
    except NoGpu as error:
        # DALI's decoder asks NVML, which a container has with the capability `utility` only
        if torch.cuda.is_available():
            without = "without it DALI's decoder on the GPU cannot begin"
            return failed(
                f"PyTorch sees a GPU, and NVML cannot be asked ({error}): {without}",
                f"{WITH_UTILITY}. {CPU_LOADERS}",
            )
        return failed(
            f"no GPU: {error}",
            (f"install NVIDIA's driver, or start the container with --gpus all. {CPU_LOADERS}"),
        )

    versions = f"driver {version} for CUDA {cuda[0]}.{cuda[1]}"
    if torch.version.cuda is None:
        return failed(
            f"no GPU for this build of PyTorch; {versions}",
            f"install a build with CUDA. {CPU_LOADERS}",
        )

    # within one major version, older drivers run code that was built for newer ones
    if cuda[0] < int(torch.version.cuda.split(".")[0]):
        return failed(
            f"{versions} is too old: PyTorch is built for CUDA {torch.version.cuda}",
            f"update the driver, or install the builds for CUDA {cuda[0]}. {CPU_LOADERS}",
        )

    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if visible is None else f"; CUDA_VISIBLE_DEVICES is {visible!r}"
        return failed(
            f"no GPU that PyTorch can use; {versions}{hidden}",
            f"nvidia-smi -L must list one. {CPU_LOADERS}",
        )

    if not adds():
        return failed(
            f"the GPU computes wrongly; {versions}",
            f"nvidia-smi -q shows its errors; take another one. {CPU_LOADERS}",
        )

    return ok(f"{', '.join(map(_describe, range(torch.cuda.device_count())))}; {versions}")


def adds() -> bool:
    """Whether 1 + 1 is 2 on the GPU.

    PyTorch raises on a GPU that this build has no kernels for.
    """
    return bool((torch.ones(1000, device="cuda") + 1 == 2).all())


def uuid() -> str:
    """The NVML UUID of the first visible GPU."""
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def _describe(index: int) -> str:
    gpu = torch.cuda.get_device_properties(index)
    return f"{gpu.name} ({size(gpu.total_memory)}, compute capability {gpu.major}.{gpu.minor})"
