"""What a loader needs at least: batches that are made ahead, and what decoders hold."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.config import DaliConfig, LoaderConfig, TorchConfig
from dali_pipes.backends.dali.decoding import choose, output_dtype
from dali_pipes.plan.transforms import DTYPES, Transform
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.memory import Need

DTYPE_BYTES = {name: getattr(torch, dtype).itemsize for name, dtype in DTYPES.items()}
HOST_MEMORY_PADDING = 8 * 2**20  # DALI's default, which these graphs leave as it is


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
