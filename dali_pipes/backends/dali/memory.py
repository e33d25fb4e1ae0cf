"""What DALI needs at least: its queue of batches, and what its decoder holds."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dali_pipes.backends.common.pixels import DTYPE_BYTES, pixels_of
from dali_pipes.backends.config import DaliConfig
from dali_pipes.backends.dali.decoding import choose, output_dtype
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.memory import Need

FINISHED = 3  # batches: one that is delivered, one ahead of it and one in work
HOST_MEMORY_PADDING = 8 * 2**20  # DALI's default, which these graphs leave as it is


def memory_needs(config: DaliConfig, transform: Transform, batch_size: int, sizes: NDArray[np.int64]) -> Iterator[Need]:
    """See `Backend.memory_needs`."""
    on_gpu, depth = config.decodes_on == "gpu", config.prefetch_queue_depth
    text, pixels = pixels_of(transform, batch_size)
    if not config.graph_finishes:  # how large the windows in DALI's queue are depends on the draws
        yield Need(f"{FINISHED} batches {text}", "host", FINISHED * pixels * DTYPE_BYTES[transform.dtype], "batch_size")
        return
    queue = depth * pixels * DTYPE_BYTES[output_dtype(transform, config.decodes_on)]
    yield Need(f"{depth} batches {text} of DALI", "gpu" if on_gpu else "host", queue, "batch_size or prefetch_queue_depth")
    if on_gpu:
        if not choose(config, transform, on_gpu).region:
            yield Need(f"{batch_size} decoded images", "gpu", int(batch_size * sizes.prod(axis=1).mean() * 3), "batch_size")
        yield from _decoder_needs(config)


def _decoder_needs(config: DaliConfig) -> Iterator[Need]:
    """What DALI's mixed decoder takes when it is made, before the first image.

    For each of its threads, `num_threads` of a separate pool (dali/operators/imgcodec/image_decoder.h:217 in DALI 2.4.0, :221 in
    2.2.0) and the caller's: one buffer of `device_memory_padding` and two page-locked ones of `host_memory_padding` (nvImageCodec
    0.8.0, extensions/nvjpeg/cuda_decoder.cpp:270-318). What it allocates for the JPEG engines (hw_decoder.cpp:529-568) is left out:
    a GPU may have none, and what nvjpegDecodeBatchedPreAllocate makes of the hints is not public.
    """
    threads = (config.num_threads or 1) + 1
    per_thread = f"buffers of {threads} decoder threads"
    yield Need(per_thread, "gpu", threads * config.device_memory_padding, "num_threads or device_memory_padding")
    yield Need(f"page-locked {per_thread}", "host", threads * 2 * HOST_MEMORY_PADDING, "num_threads")
