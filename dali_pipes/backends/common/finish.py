"""Turns decoded regions into finished images on the CPU, in threads.

`Finisher` cuts each batch into parts, one task each. A task makes the views of its images
(view_finisher.py) and writes them into a buffer that is used again (buffers.py).
"""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise, starmap
from typing import Any

import torch

from dali_pipes.backends.base import DecodedBatch, Delivery
from dali_pipes.backends.common.buffers import Buffers
from dali_pipes.backends.common.transfer import run_one_ahead
from dali_pipes.backends.common.view_finisher import (
    Regions,
    ViewFinisher,
    arguments_of,
    as_resized,
)
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform, views_of
from dali_pipes.system.traces import span

# `_one_core_each` reads PyTorch's number of threads, changes it and sets it back: one at a time
_THREAD_COUNT_LOCK = threading.Lock()
MIN_IMAGES_PER_TASK = 4  # images that are worth a task of their own


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
        self._views = list(map(ViewFinisher, views_of(transform)))
        self._shares_resize = transform.shares_resize
        self._count, self._threads = threads, ThreadPoolExecutor(threads, "finish")
        _one_core_each(self._threads, threads)

    def __call__(self, decoded: Iterator[tuple[PlannedBatch, Regions]]) -> Iterator[Delivery]:
        """The batches in order."""
        # a batch is waited for in `_result`, when the next one has been started already
        return starmap(_result, run_one_ahead(starmap(self._start, decoded), lambda begun: begun))

    def _start(
        self, planned: PlannedBatch, regions: Regions
    ) -> tuple[Delivery, list[Future[None]]]:
        """Starts the tasks of one batch.

        Args:
            regions: of `planned.region`.

        Returns:
            The batch, whose images are there once all of the tasks are done, and the tasks.
        """
        n, origin = len(planned), planned.region[:, :2]
        each_group = zip(self._buffers, planned.groups, strict=True)
        groups = [buffers.take(n * len(views), views[0].shape) for buffers, views in each_group]
        outs = [out for group in groups for out in torch.split(group, n)]
        # for each view the arguments of `ViewFinisher.__call__`; each task gets a slice of them
        views = [
            (*arguments_of(view, origin), out)
            for view, out in zip(planned.views, outs, strict=True)
        ]

        # a small batch is cut into fewer parts than there are threads
        count = min(self._count, -(-n // MIN_IMAGES_PER_TASK))
        edges = [n * part // count for part in range(count + 1)]
        delivery = planned, DecodedBatch.of(groups, torch.from_numpy(planned.ids))
        return delivery, [
            self._threads.submit(
                self._finish,
                regions[first:last],
                [[values[first:last] for values in view] for view in views],
            )
            for first, last in pairwise(edges)
        ]

    def _finish(self, regions: Regions, views: list[list[Any]]) -> None:
        with span("finish"):
            if self._shares_resize:
                regions = self._views[0].resize(regions, views[0][0])
                views = [[as_resized(places), *rest] for places, *rest in views]
            for finish, values in zip(self._views, views, strict=True):
                finish(regions, *values)

    def close(self) -> None:
        """Ends the threads, after the images in work."""
        self._threads.shutdown(cancel_futures=True)


def _result(delivery: Delivery, parts: list[Future[None]]) -> Delivery:
    for part in parts:
        part.result()
    return delivery


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
