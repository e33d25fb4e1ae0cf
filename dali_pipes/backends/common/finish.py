"""Turns decoded regions into finished images on the CPU, in threads.

`Finisher` cuts each batch into parts, one task each. A task resizes, crops, flips, augments and
normalizes its images and writes them into a buffer from `Buffers`. The loop over images is compiled
by TorchScript, so that it runs without the interpreter lock.

PyTorch resizes uint8 images in memory format channels_last with vector instructions, as Pillow does
and within one step of its result (aten/src/ATen/native/cpu/UpSampleKernelAVXAntialias.h, made after
Pillow-SIMD).
"""

import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from itertools import pairwise, starmap
from math import prod
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dali_pipes.backends.base import DecodedBatch, Delivery
from dali_pipes.backends.common import pixels
from dali_pipes.backends.common.transfer import run_one_ahead
from dali_pipes.plan.augment.operations import Codes, Numbers
from dali_pipes.plan.geometry import Pair
from dali_pipes.plan.plan import PlannedBatch, PlannedView
from dali_pipes.plan.transforms import Transform, views_of
from dali_pipes.system.traces import span

_COMPILE_LOCK = threading.Lock()  # TorchScript's compiler is not safe for several threads
# `_one_core_each` reads PyTorch's number of threads, changes it and sets it back: one at a time
_THREAD_COUNT_LOCK = threading.Lock()
MAX_FREE_BUFFERS = 4  # free buffers that are kept; further ones are freed
MIN_IMAGES_PER_TASK = 4  # images that are worth a task of their own
Regions = list[torch.Tensor]  # (H, W, 3) uint8, one for each image


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
        self._views = list(map(_ViewFinisher, views_of(transform)))
        self._count, self._threads = threads, ThreadPoolExecutor(threads, "finish")
        _one_core_each(self._threads, threads)

    def __call__(self, decoded: Iterator[tuple[PlannedBatch, Regions]]) -> Iterator[Delivery]:
        """The batches in order."""
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
        # for each view the arguments of `_ViewFinisher.__call__`; each task gets a slice of them
        views = [
            (*_arguments(view, origin), out) for view, out in zip(planned.views, outs, strict=True)
        ]

        count = min(self._count, -(-n // MIN_IMAGES_PER_TASK))
        edges = [n * part // count for part in range(count + 1)]

        return (planned, DecodedBatch.of(groups, torch.from_numpy(planned.ids))), [
            self._threads.submit(
                self._finish,
                regions[first:last],
                [[values[first:last] for values in view] for view in views],
            )
            for first, last in pairwise(edges)
        ]

    def _finish(self, regions: Regions, views: list[list[Any]]) -> None:
        with span("finish"):
            for finish, values in zip(self._views, views, strict=True):
                finish(regions, *values)

    def close(self) -> None:
        """Ends the threads, after the images in work."""
        self._threads.shutdown(cancel_futures=True)


def _result(delivery: Delivery, parts: list[Future[None]]) -> Delivery:
    for part in parts:
        part.result()
    return delivery


class _ViewFinisher:
    """Makes one view of decoded regions."""

    def __init__(self, transform: Transform):
        self._slots, self._erases, self._mode = (
            transform.augmenter.slots,
            transform.augmenter.erases,
            transform.interpolation,
        )
        self._normalization = cache(partial(pixels.normalization, transform))
        self._run = _compile_without_gil(_place_all if self._slots else _place_and_normalize_all)

    def __call__(
        self,
        regions: Regions,
        places: torch.Tensor,
        ops: Codes,
        magnitudes: Numbers,
        erased: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Writes this view of the regions into `out`.

        Args:
            places: (N, 10) the arguments of `_place` for each image.
            out: (N, 3, H, W), which is written.
        """
        placed = regions, places, list(out.shape[2:]), self._mode

        constants = self._normalization(out.shape[3])
        with _without_profiling():
            placed_by = self._run(*placed, *(() if self._slots else (out, *constants)))

        if self._slots:
            # without augmentation the compiled function has written `out` already
            for finished, image, codes, strengths in zip(
                out, placed_by, ops, magnitudes, strict=True
            ):
                pixels.finish_into(finished, image, self._slots, codes, strengths, constants)
        if self._erases:
            pixels.erase(out, erased)


def _arguments(
    view: PlannedView, origin: NDArray[np.int64]
) -> tuple[torch.Tensor, Codes, Numbers, torch.Tensor]:
    """The arguments of `_ViewFinisher.__call__` except the first and the last.

    `origin` is the top left corner of each region in its image, (N, 2).
    """
    geometry, drawn = view.geometry, view.augmentation
    flips = np.stack([geometry.flip, geometry.vertical_flip], axis=1)
    # the columns that `_place` unpacks
    columns = (
        geometry.resize,
        geometry.crop,
        flips,
        geometry.region_start - origin,
        geometry.region_size,
    )
    places = np.concatenate(columns, axis=1, dtype=np.int64)
    return torch.from_numpy(places), drawn.ops, drawn.magnitudes, torch.from_numpy(drawn.erased)


@cache
def _compile_without_gil(function: FunctionType) -> Callable[..., Any]:
    """The same function without the interpreter lock, so that threads need not wait for each other.

    TorchScript does that. PyTorch has deprecated it and has no other way. If it is gone, the
    function itself gives the same images.
    """
    if not hasattr(torch.jit, "script"):
        return function

    # PyTorch caches what it has compiled of a function. A copy is compiled again, which a forked
    # child needs (`_reset_after_fork`).
    own = FunctionType(function.__code__, function.__globals__, function.__name__)
    own.__annotations__, own.__module__ = function.__annotations__, function.__module__
    with _COMPILE_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(own)


def _without_profiling() -> AbstractContextManager[None]:
    """Makes TorchScript run a function as it was compiled.

    By default it observes the first calls and optimizes what it has seen, under a lock that all
    functions share: a process that is forked meanwhile waits for it forever. There is nothing to
    gain, since the function is a loop of a few large operators.
    """
    return (
        torch.jit.optimized_execution(False)
        if hasattr(torch.jit, "optimized_execution")
        else nullcontext()
    )


def _reset_after_fork() -> None:
    """Replaces locks and compiled functions in a forked child.

    A thread of the parent may have held a lock then, which nobody releases in the child. One such
    lock is TorchScript's own, of each compiled function
    (torch/csrc/jit/runtime/profiling_graph_executor_impl.cpp, getPlanFor): in the first calls of a
    function it is held for as long as PyTorch optimizes it.
    """
    global _COMPILE_LOCK, _THREAD_COUNT_LOCK
    _COMPILE_LOCK, _THREAD_COUNT_LOCK = threading.Lock(), threading.Lock()
    _compile_without_gil.cache_clear()


os.register_at_fork(after_in_child=_reset_after_fork)


def _place(region: torch.Tensor, place: list[int], shape: list[int], mode: str) -> torch.Tensor:
    """(3, *shape): the region resized, cropped or padded with black, and flipped.

    Args:
        place: ten numbers: height and width to resize to; top and left of the crop; 1 to flip left
            to right, 1 to flip top to bottom; top, left, height and width of the part of the region
            that is resized.
    """
    height, width, top, left = place[:4]
    flip, vertical_flip = place[4:6]
    part_top, part_left, part_height, part_width = place[6:]

    if [region.size(0), region.size(1)] != [part_height, part_width]:
        region = region[
            part_top : part_top + part_height, part_left : part_left + part_width
        ].contiguous()

    # in this order: only so is the image channels_last, which PyTorch resizes faster
    image = region.unsqueeze(0).permute(0, 3, 1, 2)
    if image.size(2) != height or image.size(3) != width:
        image = F.interpolate(image, [height, width], mode=mode, antialias=mode != "nearest-exact")

    if [height, width, top, left] != [shape[0], shape[1], 0, 0]:
        image = F.pad(image, [-left, left + shape[1] - width, -top, top + shape[0] - height])

    if flip == 1:
        image = image.flip([3])
    return (image.flip([2]) if vertical_flip == 1 else image)[0]


def _place_all(
    regions: list[torch.Tensor], places: torch.Tensor, shape: list[int], mode: str
) -> list[torch.Tensor]:
    listed: list[list[int]] = places.tolist()
    return [_place(region, listed[i], shape, mode) for i, region in enumerate(regions)]


def _place_and_normalize_all(
    regions: list[torch.Tensor],
    places: torch.Tensor,
    shape: list[int],
    mode: str,
    out: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
) -> None:
    listed: list[list[int]] = places.tolist()
    for i, region in enumerate(regions):
        pixels.normalize_into(out[i], _place(region, listed[i], shape, mode), mean, scale)


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


class Buffers:
    """Images of (N, 3, H, W) in host memory that is reused.

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
        self._full, self._form = (
            batch_size,
            (pixels.TORCH_DTYPES[transform.dtype], transform.memory_format),
        )
        self._bytes = batch_size * 3 * prod(transform.shape) * pixels.DTYPE_BYTES[transform.dtype]
        self._fresh = partial(torch.empty, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        self._memory = self._fresh if pinned else self._reuse_memory
        self._free: deque[torch.Tensor] = deque(maxlen=MAX_FREE_BUFFERS)

    def take(self, count: int, shape: Pair) -> torch.Tensor:
        """(count, 3, *shape), not initialized.

        A batch that is not full gets memory of its own, so that whoever saves its storage saves no
        more than the batch.
        """
        # other threads write into it, which PyTorch refuses for a tensor made in inference mode
        with torch.inference_mode(False):
            return pixels.empty_images(
                count, shape, *self._form, self._memory if count == self._full else self._fresh
            )

    def _reuse_memory(self, count: int) -> torch.Tensor:
        try:
            memory = self._free.pop()
        except IndexError:
            memory = self._fresh(self._bytes)
        # the end of this array, not of `memory`, says that nobody uses the buffer any more
        owner = memory.numpy()  # a new array each time
        weakref.finalize(owner, self._free.append, memory).atexit = False
        return torch.from_numpy(owner)[:count]
