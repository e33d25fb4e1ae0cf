"""Checks the CPU, the memory, the system limits, the storage and the GPUs of this process.

Each check is a function that returns a `Finding`; run.py calls them in order.
"""

import os
import resource
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import torch

from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Extent, Reader
from dali_pipes.system.cpus import affinity_cores, cpu_quota
from dali_pipes.system.memory import memory_left
from dali_pipes.system.nvml import FIGURES, WITH_UTILITY, Gpu, NoGpu, driver
from dali_pipes.system.page_cache import evict, resident_share
from dali_pipes.system.telemetry import throttled_seconds
from dali_pipes.tools.doctor.report import Finding, failed, ok, size, warning

SHM = Path("/dev/shm")
INFINIBAND = Path("/sys/class/infiniband")
FILES_OF_A_PROCESS = 256  # libraries, device files, logs, pipes
FILES_OF_A_WORKER = 20  # 10 in training and 10 in evaluation, counted with prefetch_factor=2
TIGHT = 4 * 2**30  # bytes of free memory; less gives a warning
THREADS = (1, 8)  # how many threads read from storage, in each of two tests
SECONDS = 3.0  # of each of these tests at most
FILES = 1000  # images of each of these tests at most
_RESIDENT = 0.01  # share of them that may be left in memory
CPU_LOADERS = "CPU loaders work: loader=dali_cpu"


def cores() -> Finding:
    """Compares this process's CPU affinity with the machine's cores."""
    mine, all_of_them = affinity_cores(), os.cpu_count() or 1
    if mine < all_of_them:
        return warning(
            f"this process may run on {mine} of the machine's {all_of_them} cores",
            (
                "affinity limits it: taskset, --cpuset-cpus of a container, --cpus-per-task of "
                "SLURM; harmless if intended"
            ),
        )
    return ok(f"all {all_of_them} of the machine's cores")


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


def locked_memory() -> Finding:
    """Checks RLIMIT_MEMLOCK, which matters with InfiniBand only.

    Memory that CUDA locks for copies to a GPU does not count against it; memory that InfiniBand
    locks does.
    """
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        return ok("no limit")

    adapters = sorted(path.name for path in INFINIBAND.iterdir()) if INFINIBAND.is_dir() else []
    if not adapters:
        return ok(f"{size(limit)}; only InfiniBand would need more, and there is none")

    return warning(
        (
            f"{size(limit)}, and there is InfiniBand ({', '.join(adapters)}), through which "
            "NCCL needs more"
        ),
        (
            "ulimit -l unlimited; --ulimit memlock=-1 of a container; LimitMEMLOCK=infinity of "
            "a service"
        ),
    )


def open_files(workers: int) -> Finding:
    """Compares RLIMIT_NOFILE with the files that a process with these workers opens.

    They are pipes, and one file for each tensor in flight.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = FILES_OF_A_PROCESS + workers * FILES_OF_A_WORKER
    if soft == resource.RLIM_INFINITY or soft >= need:
        return ok("no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}")

    higher = (
        ""
        if hard == resource.RLIM_INFINITY or hard >= need
        else f"; the hard limit is {hard:,}, which root can raise"
    )
    return warning(
        f"{soft:,}; about {need:,} are needed with {workers} workers",
        f"ulimit -n {max(need, 65536)}{higher}",
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


def nvml_figures() -> Finding:
    """Reports each figure of telemetry, or why it is not available."""
    gpu = Gpu(uuid())
    # the shares of a sample are of the time since the one before, here since `Gpu` was made
    time.sleep(0.2)
    sample = gpu.sample()

    units = {"memory_mib": "{:,.0f} MiB", "energy_j": "{:,.0f} J"}
    there = [
        f"{name} {units.get(name, '{:.0%}').format(value)}"
        for name in FIGURES
        if (value := sample[name]) is not None
    ]
    absent = [
        f"{name} ({gpu.missing.get(name, 'no reason given')})"
        for name in FIGURES
        if sample[name] is None
    ]

    if not absent:
        return ok(", ".join(there))
    return warning(
        f"{', '.join(there) or 'nothing'}; not: {', '.join(absent)}",
        "benchmark results lack them; nothing else needs them",
    )


def uuid() -> str:
    """The NVML UUID of the first visible GPU."""
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def _describe(index: int) -> str:
    gpu = torch.cuda.get_device_properties(index)
    return f"{gpu.name} ({size(gpu.total_memory)}, compute capability {gpu.major}.{gpu.minor})"


def not_asked() -> Finding:
    return warning(
        "not checked: no images were named",
        "data.train=DIR, or data.root=DIR with train/ in it, checks their storage",
    )


def page_cache(manifest: Manifest) -> Finding:
    """Compares the data set's size with free memory, and says how much is in the page cache."""
    total, left, share = (
        manifest.bytes_in_all,
        memory_left(),
        resident_share(files(sample(manifest, FILES))),
    )

    now = (
        "how much of it is there now is unknown (another owner's files)"
        if share is None
        else f"{share:.0%} of it is there now"
    )

    sizes = f"{size(total)} in {len(manifest):,} images, {size(left)} of memory left; {now}"
    if total <= left:
        return ok(sizes)

    return warning(
        f"does not fit into memory: {sizes}",
        "every epoch reads from storage: add memory, or check below that its speed is enough",
    )


def storage_speed(manifest: Manifest, images_per_s: float) -> Finding:
    """Measures how fast images that are not in memory are read, with each number of `THREADS`.

    Args:
        images_per_s: the rate that the storage must reach so that training does not wait for it.
    """
    extents = sample(manifest, FILES * len(THREADS))
    if len(extents) < THREADS[-1] * len(THREADS):
        return warning(f"unknown: {len(extents)} images are too few", "name more images")

    rates, rate = [], 0.0
    for number, threads in enumerate(THREADS):
        # other images for each number of threads, so that none is in memory already
        some = extents[number :: len(THREADS)]
        evict(files(some))
        share = resident_share(files(some))

        if share is None or share > _RESIDENT:
            unknown = "the kernel does not report whether another owner's files left memory"
            why = unknown if share is None else f"{share:.0%} of them stayed in memory"
            return warning(
                f"unknown: {why}",
                "name images that this user owns, on a disk or network (tmpfs is memory)",
            )

        megabytes, rate = read_speed(some, threads)
        rates.append(
            f"{megabytes:,.0f} MB/s, {rate:,.0f} images/s with {threads} "
            f"thread{'s' if threads > 1 else ''}"
        )

    # the last test, with the most threads, decides
    if rate >= images_per_s:
        return ok("; ".join(rates))
    return warning(
        f"{'; '.join(rates)}: less than images_per_s={images_per_s:g}",
        (
            "training waits for it whenever images are not in memory: a faster disk, a local "
            "copy, or memory that holds them all"
        ),
    )


def read_speed(
    extents: Sequence[Extent], threads: int, seconds: float = SECONDS
) -> tuple[float, float]:
    """Reads images for at most `seconds`; returns MB (10**6 bytes) and images per second."""
    reader, start = Reader(), time.monotonic()

    def read(extent: Extent) -> int | None:
        # after the time is over, what is still queued ends at once
        return len(reader.read(extent)) if time.monotonic() - start < seconds else None

    with ThreadPoolExecutor(threads) as pool:
        done = [count for count in pool.map(read, extents) if count is not None]

    elapsed = time.monotonic() - start
    return sum(done) / 1e6 / elapsed, len(done) / elapsed


def sample(manifest: Manifest, count: int) -> list[Extent]:
    """At most `count` images from anywhere in the data set, in random order, each extent once.

    They are the same every time.
    """
    ids = np.random.default_rng(0).permutation(len(manifest))[:count]
    # a manifest may repeat its images, and a repeated one would be read from memory
    return list(dict.fromkeys(manifest.extent(int(sample_id)) for sample_id in ids))


def files(extents: Sequence[Extent]) -> list[Path]:
    """The files that hold these extents."""
    return [Path(extent.file) for extent in extents]
