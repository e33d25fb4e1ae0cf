"""Finishes decoded regions on the CPU, in threads, one batch ahead.

`Finisher` cuts each batch into parts, one task each. A task writes the views of its images
(finish.py) into memory that is used again (`Buffers`).
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise, starmap
from math import prod

import torch

from dali_pipes.backends.backend import Decoded
from dali_pipes.backends.pixels.finish import DecodedTensor, View, write_views
from dali_pipes.backends.pixels.tensors import DTYPE_BYTES, TORCH_DTYPES, empty_images
from dali_pipes.backends.transfer import run_one_ahead
from dali_pipes.plan.geometry import Pair
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform, views_of
from dali_pipes.system.traces import span

# `_one_core_each` reads PyTorch's number of threads, changes it and sets it back: one at a time
_THREAD_COUNT_LOCK = threading.Lock()
MIN_IMAGES_PER_TASK = 4  # images that are worth a task of their own
MAX_FREE_BUFFERS = 4  # free buffers that are kept; further ones are freed
Regions = list[torch.Tensor]  # (H, W, C) uint8, one for each image


class Finisher:
    """Makes all views from decoded regions, one batch ahead.

    Args:
        threads: each takes a part of every batch, and one core.
        pinned: whether batches are made in page-locked memory.
    """

    def __init__(self, transform: Transform, batch_size: int, threads: int, pinned: bool):
        self._buffers = [
            Buffers(group[0], batch_size * len(group), pinned) for group in transform.groups
        ]
        self._views, self._channels = list(map(View, views_of(transform))), transform.channels
        self._count, self._threads = threads, ThreadPoolExecutor(threads, "finish")
        _one_core_each(self._threads, threads)
        for view in self._views:
            self._threads.submit(view.run_every_operator).result()

    def __call__(self, decoded: Iterator[tuple[PlannedBatch, Regions]]) -> Iterator[Decoded]:
        """The batches in order; the regions of each are those of `PlannedBatch.region`."""
        # a batch is waited for in `_result`, when the next one has been started already
        return starmap(_result, run_one_ahead(starmap(self._start, decoded), lambda begun: begun))

    def _start(self, planned: PlannedBatch, regions: Regions) -> tuple[Decoded, list[Future[None]]]:
        """Starts the tasks of one batch.

        Returns:
            The batch, whose images are there once all of the tasks are done, and the tasks.
        """
        n = len(planned)
        each_group = zip(self._buffers, planned.groups, strict=True)
        groups = tuple(
            buffers.take(n * len(views), views[0].shape) for buffers, views in each_group
        )
        outs = [torch.split(out, 1) for group in groups for out in torch.split(group, n)]

        # a small batch is cut into fewer parts than there are threads
        count = min(self._count, -(-n // MIN_IMAGES_PER_TASK))
        edges = [n * part // count for part in range(count + 1)]
        parts = [
            self._threads.submit(self._finish, planned, regions, outs, range(first, last))
            for first, last in pairwise(edges)
        ]
        return Decoded(planned, groups), parts

    def _finish(
        self,
        planned: PlannedBatch,
        regions: Regions,
        outs: list[tuple[torch.Tensor, ...]],
        places: range,
    ) -> None:
        origins = planned.region[:, :2]
        with span("finish"):
            for at in places:
                pixels = DecodedTensor(regions[at], self._channels)
                write_views(pixels, self._views, planned, at, outs, origins[at])

    def close(self) -> None:
        """Ends the threads, after the images in work."""
        self._threads.shutdown(cancel_futures=True)


class Buffers:
    """Images of (N, C, H, W) in host memory that is reused.

    Reused pages are in memory already; the first touch of a new page would take time while batches
    are made.

    A buffer is free again when its tensor, every view of it and every NumPy array or DLPack capsule
    made from them are gone. All of them own the tensor's storage, which owns the NumPy array that
    the tensor was made from, and a finalizer waits for the end of that array.

    Page-locked memory is left to PyTorch: its allocator reuses a block only when the copies out of
    it have ended, which the host cannot see (CachingHostAllocator).

    Args:
        transform: of the images; if it pads batches, a buffer has room for the largest batch.
        batch_size: images of a full batch.
        pinned: page-locked, for copies to a GPU.
    """

    def __init__(self, transform: Transform, batch_size: int, pinned: bool):
        self._full, self._channels = batch_size, transform.channels
        self._form = TORCH_DTYPES[transform.dtype], transform.memory_format
        values = batch_size * transform.channels * prod(transform.shape)
        self._bytes = values * DTYPE_BYTES[transform.dtype]
        self._fresh = partial(torch.empty, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        self._memory = self._fresh if pinned else self._reuse_memory
        self._free: deque[torch.Tensor] = deque(maxlen=MAX_FREE_BUFFERS)

    def take(self, count: int, shape: Pair) -> torch.Tensor:
        """(count, channels, *shape), not initialized.

        A batch that is not full gets memory of its own, so that whoever saves its storage saves no
        more than the batch.
        """
        # other threads write into it, which PyTorch refuses for a tensor made in inference mode
        with torch.inference_mode(False):
            memory = self._memory if count == self._full else self._fresh
            return empty_images(count, self._channels, shape, *self._form, memory)

    def _reuse_memory(self, count: int) -> torch.Tensor:
        try:
            memory = self._free.pop()
        except IndexError:
            memory = self._fresh(self._bytes)
        # the end of this array, not of `memory`, says that nobody uses the buffer any more
        owner = memory.numpy()  # a new array each time
        weakref.finalize(owner, self._free.append, memory).atexit = False
        return torch.from_numpy(owner)[:count]


def _result(batch: Decoded, parts: list[Future[None]]) -> Decoded:
    for part in parts:
        part.result()
    return batch


def _one_core_each(pool: ThreadPoolExecutor, threads: int) -> None:
    """Keeps PyTorch from starting further threads inside the threads of the pool.

    `torch.set_num_threads` sets the number for the calling thread, and for every thread that has
    not asked for its own yet (aten/src/ATen/Parallel.h, lazy_init_num_threads). The latter is set
    back.
    """
    # all wait for each other, so that each thread of the pool runs `limit` once
    together = threading.Barrier(threads)

    def limit() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        together.wait()

    with _THREAD_COUNT_LOCK:
        others = torch.get_num_threads()
        try:
            for future in [pool.submit(limit) for _ in range(threads)]:
                future.result()
        except BaseException:
            # otherwise the started threads would wait for the others forever, and the program's
            # end for them
            together.abort()
            raise
        finally:
            torch.set_num_threads(others)


def _reset_after_fork() -> None:
    """Replaces the lock in a forked child: a thread of the parent may have held it then, and nobody
    releases it in the child.
    """
    global _THREAD_COUNT_LOCK
    _THREAD_COUNT_LOCK = threading.Lock()


os.register_at_fork(after_in_child=_reset_after_fork)
