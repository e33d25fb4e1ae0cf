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
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform

_COMPILING = threading.Lock()  # TorchScript's compiler is for one thread
_FLIPS: tuple[list[int], ...] = ([], [3], [2], [2, 3])  # dimensions of (1, 3, H, W), by flip + 2 * vertical_flip
Windows = list[torch.Tensor]  # (H, W, 3) uint8, one for each image


class Finisher:
    """Resizes, crops, flips, augments and normalizes windows, one batch ahead.

    Args:
        threads: each takes a part of every batch, and one core.
        pinned: whether batches are made in page-locked memory.
    """

    def __init__(self, transform: Transform, batch_size: int, threads: int, pinned: bool):
        self._transform, self._slots = transform, transform.augmenter.slots
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
        edges = np.linspace(0, len(rows), self._count + 1).astype(int).tolist()
        parts = [slice(*edge) for edge in pairwise(edges) if edge[0] < edge[1]]
        return batch, [self._threads.submit(self._finish, windows[part], rows.take(part), batch.images[part]) for part in parts]

    def _finish(self, windows: Windows, rows: PlannedBatch, out: torch.Tensor) -> None:
        geometry = rows.geometry
        flips = [_FLIPS[each] for each in (geometry.flip + 2 * geometry.vertical_flip).tolist()]
        placed = geometry.resize.tolist(), geometry.crop.tolist(), flips, list(self._transform.shape), self._transform.interpolation
        if self._slots:
            self._augment(self._run(windows, *placed), rows, out)
        else:
            self._run(windows, *placed, out, *self._normalization)
        if self._transform.augmenter.erases:
            erase(out, torch.from_numpy(rows.augmentation.erased))

    def _augment(self, images: list[torch.Tensor], rows: PlannedBatch, out: torch.Tensor) -> None:
        from dali_pipes.backends.common.torchvision_augment import augment

        drawn = rows.augmentation
        for image, ops, magnitudes, finished in zip(images, drawn.ops, drawn.magnitudes, out, strict=True):
            normalize_into(finished, augment(image, self._slots, ops, magnitudes), *self._normalization)

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


def _place(window: torch.Tensor, size: list[int], crop: list[int], flips: list[int], shape: list[int], mode: str) -> torch.Tensor:
    """(3, *shape): the window resized, cropped or padded with black, and flipped; `flips` are the dimensions."""
    image = window.permute(2, 0, 1).unsqueeze(0)
    if size != [image.size(2), image.size(3)]:
        image = F.interpolate(image, size, mode=mode, antialias=mode != "nearest-exact")
    if size != shape or crop != [0, 0]:
        below, right = crop[0] + shape[0] - size[0], crop[1] + shape[1] - size[1]
        image = F.pad(image, [-crop[1], right, -crop[0], below])
    return (image.flip(flips) if len(flips) > 0 else image)[0]


def _place_all(
    windows: list[torch.Tensor], sizes: list[list[int]], crops: list[list[int]], flips: list[list[int]], shape: list[int], mode: str
) -> list[torch.Tensor]:
    return [_place(window, sizes[i], crops[i], flips[i], shape, mode) for i, window in enumerate(windows)]


def _place_and_normalize_all(
    windows: list[torch.Tensor],
    sizes: list[list[int]],
    crops: list[list[int]],
    flips: list[list[int]],
    shape: list[int],
    mode: str,
    out: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
) -> None:
    for i, window in enumerate(windows):
        normalize_into(out[i], _place(window, sizes[i], crops[i], flips[i], shape, mode), mean, scale)


def _one_core_each(pool: ThreadPoolExecutor, threads: int) -> None:
    """Keeps PyTorch from starting further threads in those of the pool.

    `torch.set_num_threads` sets the count of the calling thread, and that of every thread which has not asked for its own yet
    (aten/src/ATen/Parallel.h, lazy_init_num_threads); the latter is set back.
    """
    together, others = threading.Barrier(threads), torch.get_num_threads()

    def limit() -> None:
        torch.get_num_threads()
        torch.set_num_threads(1)
        together.wait()

    for each in [pool.submit(limit) for _ in range(threads)]:
        each.result()
    torch.set_num_threads(others)
