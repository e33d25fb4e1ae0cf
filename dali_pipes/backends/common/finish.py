"""Decoded windows to finished images on the CPU: PyTorch's and torchvision's functions for uint8, in threads.

PyTorch resizes uint8 images in memory format channels_last with vector instructions, as Pillow does and within one step of it
(aten/src/ATen/native/cpu/UpSampleKernelAVXAntialias.h, made after Pillow-SIMD).
"""

import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from dali_pipes.backends.base import DecodedBatch
from dali_pipes.backends.common.buffers import Buffers
from dali_pipes.backends.common.pixels import erase, normalization, normalize_into
from dali_pipes.plan.augment.operations import Codes, Numbers
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform

_COMPILING = threading.Lock()  # TorchScript's compiler is for one thread
_COUNTING = threading.Lock()  # whoever sets PyTorch's count of threads back must have read it before others set theirs
LEAST = 4  # images that are worth a task of their own
Windows = list[torch.Tensor]  # (H, W, 3) uint8, one for each image


class Finisher:
    """Resizes, crops, flips, augments and normalizes windows, one batch ahead.

    Args:
        threads: each takes a part of every batch, and one core.
        pinned: whether batches are made in page-locked memory.
    """

    def __init__(self, transform: Transform, batch_size: int, threads: int, pinned: bool):
        self._transform, self._slots, self._erases = transform, transform.augmenter.slots, transform.augmenter.erases
        self._count, self._threads = threads, ThreadPoolExecutor(threads, "finish")
        self._buffers = Buffers(transform, batch_size, pinned)
        self._normalization = normalization(transform)
        self._run = _unlocked(_place_all if self._slots else _place_and_normalize_all)
        _one_core_each(self._threads, threads)

    def __call__(self, decoded: Iterator[tuple[PlannedBatch, Windows]]) -> Iterator[DecodedBatch]:
        """The batches in order. An error among the decoded ones is raised only after the batch before it has been delivered."""
        ahead = None
        while True:
            try:
                each = next(decoded, None)
            except Exception:
                if ahead:
                    yield _result(*ahead)
                raise
            started = self._start(*each) if each else None
            if ahead:
                yield _result(*ahead)
            if started is None:
                return
            ahead = started

    def _start(self, rows: PlannedBatch, windows: Windows) -> tuple[DecodedBatch, list[Future[None]]]:
        batch = DecodedBatch(self._buffers.take(len(rows)), torch.from_numpy(rows.ids))
        geometry, drawn = rows.geometry, rows.augmentation
        flips = np.stack([geometry.flip, geometry.vertical_flip], axis=1)
        places = torch.from_numpy(np.concatenate([geometry.resize, geometry.crop, flips], axis=1, dtype=np.int64))
        of_each: tuple[Any, ...] = windows, places, batch.images, drawn.ops, drawn.magnitudes, torch.from_numpy(drawn.erased)
        count = min(self._count, -(-len(rows) // LEAST))
        edges = [len(rows) * part // count for part in range(count + 1)]
        return batch, [
            self._threads.submit(self._finish, *(values[first:last] for values in of_each)) for first, last in pairwise(edges)
        ]

    def _finish(
        self, windows: Windows, places: torch.Tensor, out: torch.Tensor, ops: Codes, magnitudes: Numbers, erased: torch.Tensor
    ) -> None:
        placed = windows, places, list(self._transform.shape), self._transform.interpolation
        if self._slots:
            self._augment(self._run(*placed), ops, magnitudes, out)
        else:
            self._run(*placed, out, *self._normalization)
        if self._erases:
            erase(out, erased)

    def _augment(self, images: list[torch.Tensor], ops: Codes, magnitudes: Numbers, out: torch.Tensor) -> None:
        from dali_pipes.backends.common.torchvision_augment import augment

        for image, finished, *drawn in zip(images, out, ops, magnitudes, strict=True):
            normalize_into(finished, augment(image, self._slots, *drawn), *self._normalization)

    def close(self) -> None:
        """Ends the threads, after the images in work."""
        self._threads.shutdown(cancel_futures=True)


def _result(batch: DecodedBatch, parts: list[Future[None]]) -> DecodedBatch:
    for part in parts:
        part.result()
    return batch


@cache
def _unlocked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same without the interpreter lock, so that threads need not wait for each other: by TorchScript.

    PyTorch has deprecated it and has no other way. Where it is gone, the function itself gives the same images.
    """
    if not hasattr(torch.jit, "script"):
        return function
    with _COMPILING, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)


def _place(window: torch.Tensor, place: list[int], shape: list[int], mode: str) -> torch.Tensor:
    """(3, *shape): the window resized, cropped or padded with black, and flipped.

    Args:
        place: the height and width to resize to, top and left of the crop, and 1 to flip left to right and top to bottom.
    """
    height, width, top, left = place[:4]
    image = window.unsqueeze(0).permute(0, 3, 1, 2)  # in this order: only so it is channels_last, which is resized faster
    if image.size(2) != height or image.size(3) != width:
        image = F.interpolate(image, [height, width], mode=mode, antialias=mode != "nearest-exact")
    if [height, width, top, left] != [shape[0], shape[1], 0, 0]:
        image = F.pad(image, [-left, left + shape[1] - width, -top, top + shape[0] - height])
    if place[4] == 1:
        image = image.flip([3])
    return (image.flip([2]) if place[5] == 1 else image)[0]


def _place_all(windows: list[torch.Tensor], places: torch.Tensor, shape: list[int], mode: str) -> list[torch.Tensor]:
    listed: list[list[int]] = places.tolist()
    return [_place(window, listed[i], shape, mode) for i, window in enumerate(windows)]


def _place_and_normalize_all(
    windows: list[torch.Tensor],
    places: torch.Tensor,
    shape: list[int],
    mode: str,
    out: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
) -> None:
    listed: list[list[int]] = places.tolist()
    for i, window in enumerate(windows):
        normalize_into(out[i], _place(window, listed[i], shape, mode), mean, scale)


def _one_core_each(pool: ThreadPoolExecutor, threads: int) -> None:
    """Keeps PyTorch from starting further threads in those of the pool.

    `torch.set_num_threads` sets the count of the calling thread, and that of every thread which has not asked for its own yet
    (aten/src/ATen/Parallel.h, lazy_init_num_threads); the latter is set back.
    """
    together = threading.Barrier(threads)

    def limit() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        together.wait()

    with _COUNTING:
        others = torch.get_num_threads()
        for each in [pool.submit(limit) for _ in range(threads)]:
            each.result()
        torch.set_num_threads(others)
