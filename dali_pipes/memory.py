"""What a run will need at least, on the host, in /dev/shm and on the GPU; what is free there; a refusal of what cannot fit."""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.functional import cross_entropy

from dali_pipes.backends.config import DaliConfig, LoaderConfig, TorchConfig
from dali_pipes.backends.dali.decoding import choose, output_dtype
from dali_pipes.errors import ConfigError
from dali_pipes.plan.transforms import DTYPES, Transform
from dali_pipes.system.cpus import available_cpus, cgroup_folders

GIB = 2**30
SHM = "/dev/shm"
DTYPE_BYTES = {name: getattr(torch, dtype).itemsize for name, dtype in DTYPES.items()}
HOST_MEMORY_PADDING = 8 * 2**20  # DALI's default, which these graphs leave as it is
# controller of /proc/self/cgroup, files for limit and use, and in memory.stat the page cache and what of it cannot be dropped
_CGROUP_VERSIONS = [
    ("", "memory.max", "memory.current", "file", "shmem"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"),
]


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that takes memory.

    Attributes:
        what: in a few words, with the numbers that it comes from.
        where: "host", "shm" (which is part of the host's) or "gpu".
        bytes: at least.
        option: what makes it smaller.
    """

    what: str
    where: str
    bytes: int
    option: str


def check_fits(needs: Sequence[Need], free: dict[str, int]) -> None:
    """What is refused here could not have run; what passes may still run out, since only what is certain is counted.

    Args:
        free: bytes for each place, as from `free_memory`; a place that is not in it is not checked.

    Raises:
        ConfigError: the parts with their numbers, and what to make smaller.
    """
    for where, there in free.items():
        here = sorted((need for need in needs if need.where == where or (where == "host" and need.where == "shm")), key=_bytes)
        total = sum(need.bytes for need in here)
        if total > there:
            parts = "; ".join(f"{need.what}: {need.bytes / GIB:.2f} GiB" for need in reversed(here))
            place = {"host": "of memory", "shm": f"in {SHM}", "gpu": "on the GPU"}[where]
            raise ConfigError(
                f"this needs at least {total / GIB:.2f} GiB {place}, and {there / GIB:.2f} GiB are free ({parts}); "
                f"make {here[-1].option} smaller" + (f", or {SHM} larger (docker --shm-size)" if where == "shm" else "")
            )


def free_memory(ranks: int = 1) -> dict[str, int]:
    """Bytes for each of `ranks` processes that share this machine: of the host and of /dev/shm, and on the current GPU."""
    free = {"host": memory_left() // ranks}
    with contextlib.suppress(OSError):
        free["shm"] = shutil.disk_usage(SHM).free // ranks
    if torch.cuda.is_available():
        free["gpu"] = torch.cuda.mem_get_info()[0]
    return free


def memory_left() -> int:
    """Bytes this process can still have: of the host, and of every cgroup (v1, v2) it is in; page cache counts as free."""
    return max(0, min([psutil.virtual_memory().available, *_left_in_cgroups()]))


def _left_in_cgroups() -> Iterator[int]:
    for controller, limit, used, cache, kept in _CGROUP_VERSIONS:
        for folder in cgroup_folders(controller):
            with contextlib.suppress(OSError, ValueError, KeyError):  # "max" is no number, and a top group has no files
                stat = _stat(folder)
                yield int((folder / limit).read_text()) - int((folder / used).read_text()) + stat[cache] - stat[kept]


def _stat(folder: Path) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split() for line in (folder / "memory.stat").read_text().splitlines())}


def loader_needs(loader: LoaderConfig, transform: Transform, batch_size: int, sizes: NDArray[np.int64]) -> Iterator[Need]:
    """Batches that are made ahead, and images while they are decoded.

    Args:
        batch_size: images per batch of the loader.
        sizes: (N, 2), heights and widths of the images.
    """
    size = max(transform.every_size)
    batch = batch_size * 3 * size**2 * DTYPE_BYTES[transform.dtype]
    told = f"of {batch_size} × {size} × {size} pixels"
    on_gpu = torch.cuda.is_available()
    match loader:
        case TorchConfig():
            workers = available_cpus() if loader.num_workers is None else loader.num_workers
            if on_gpu and loader.normalize_on != "worker":
                batch //= DTYPE_BYTES[transform.dtype]
            ahead = workers * loader.prefetch_factor
            if ahead:
                what, smaller = f"{ahead} batches {told} of {workers} workers", "batch_size, num_workers or prefetch_factor"
                yield Need(what, "shm", ahead * batch, smaller)
            yield Need(f"a batch {told}", "host", batch, "batch_size")
        case DaliConfig():
            where = "gpu" if on_gpu and loader.device != "cpu" else "host"
            depth = loader.prefetch_queue_depth
            dtype = output_dtype(transform, "gpu" if where == "gpu" else "cpu")
            queue = depth * batch // DTYPE_BYTES[transform.dtype] * DTYPE_BYTES[dtype]
            yield Need(f"{depth} batches {told} of DALI", where, queue, "batch_size or prefetch_queue_depth")
            if where == "gpu":
                if not choose(loader, transform, on_gpu).region:
                    decoded = int(batch_size * sizes.prod(axis=1).mean() * 3)
                    yield Need(f"{batch_size} decoded images", where, decoded, "batch_size")
                yield from _decoder_needs(loader)


def _decoder_needs(loader: DaliConfig) -> Iterator[Need]:
    """What DALI's mixed decoder takes when it is made, before the first image.

    For each of its threads, `num_threads` of a pool of its own (dali/operators/imgcodec/image_decoder.h:217 in DALI 2.4.0, :221 in
    2.2.0) and the caller's: one buffer of `device_memory_padding` and two page-locked ones of `host_memory_padding` (nvImageCodec
    0.8.0, extensions/nvjpeg/cuda_decoder.cpp:270-318). What it allocates for the JPEG engines (hw_decoder.cpp:529-568) is left out:
    a GPU may have none, and what nvjpegDecodeBatchedPreAllocate makes of the hints is not public.
    """
    threads = (loader.num_threads or available_cpus()) + 1
    per_thread = f"buffers of {threads} decoder threads"
    yield Need(per_thread, "gpu", threads * loader.device_memory_padding, "num_threads or device_memory_padding")
    yield Need(f"page-locked {per_thread}", "host", threads * 2 * HOST_MEMORY_PADDING, "num_threads")


def model_needs(module: nn.Module, optimizer_states: int, ema: bool, batch_size: int, kept: int) -> Iterator[Need]:
    """Weights with what goes with them, and what a step takes besides: activations, which are gone when all gradients are there.

    Args:
        optimizer_states: tensors per weight, 1 for SGD with momentum, 2 for AdamW.
        batch_size: images per forward pass.
        kept: bytes that the forward pass keeps, as from `saved_bytes`; 0: unknown.
    """
    weights = sum(each.nbytes for each in module.parameters())
    copies = 1 + optimizer_states + ema
    yield Need(f"{copies} × the weights (optimizer, average)", _on_device(), copies * weights, "the model")
    if kept > weights:
        yield Need(f"activations of {batch_size} images", _on_device(), kept, "batch_size (and accumulate more)")
    else:
        yield Need("gradients", _on_device(), weights, "the model")


def saved_bytes(module: nn.Module, batch_size: int, size: int) -> int:
    """What the forward pass in fp32 keeps for the backward pass, its weights left out; no memory is taken to find out.

    0 for a network that cannot be run without its numbers, as one whose steps depend on them.
    """
    try:
        return _saved_bytes(module, batch_size, size)
    except Exception:
        return 0


def _saved_bytes(module: nn.Module, batch_size: int, size: int) -> int:
    kept: dict[int, Tensor] = {}
    with FakeTensorMode() as fake:  # tensors without storage, but with the kernels that a CPU chooses
        named = [*module.named_parameters(), *module.named_buffers()]
        weights: dict[str, Tensor] = {name: fake.from_tensor(each) for name, each in named}
        own = {each.untyped_storage()._cdata for each in weights.values()}

        def keep(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage()._cdata not in own:
                kept[tensor.untyped_storage()._cdata] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            scores = torch.func.functional_call(module, weights, (torch.empty(batch_size, 3, size, size),))
            cross_entropy(scores, torch.zeros(batch_size, dtype=torch.int64))
    return sum(each.untyped_storage().nbytes() for each in kept.values())


def _on_device() -> str:
    return "gpu" if torch.cuda.is_available() else "host"


def _bytes(need: Need) -> int:
    return need.bytes
