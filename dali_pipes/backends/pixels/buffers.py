"""Memory of finished images on the CPU, which is used again."""

import weakref
from collections import deque
from functools import partial
from math import prod

import torch

from dali_pipes.backends.pixels.tensors import DTYPE_BYTES, TORCH_DTYPES, empty_images
from dali_pipes.plan.geometry import Pair
from dali_pipes.plan.transforms import Transform

MAX_FREE_BUFFERS = 4  # free buffers that are kept; further ones are freed


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
