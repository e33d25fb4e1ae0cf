"""Finishes decoded regions on the CPU, in threads, one batch ahead.

`Finisher` cuts each batch into parts, one task each. A task writes the views of its images
(finish.py) into a buffer that is used again (buffers.py).
"""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise, starmap

import torch

from dali_pipes.backends.backend import Decoded
from dali_pipes.backends.pixels.buffers import Buffers
from dali_pipes.backends.pixels.finish import DecodedTensor, View, write_views
from dali_pipes.backends.transfer import run_one_ahead
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform, views_of
from dali_pipes.system.traces import span

# `_one_core_each` reads PyTorch's number of threads, changes it and sets it back: one at a time
_THREAD_COUNT_LOCK = threading.Lock()
MIN_IMAGES_PER_TASK = 4  # images that are worth a task of their own
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
