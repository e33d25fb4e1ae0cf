"""Host memory for batches that is used again, so that no page of it is touched for the first time while batches are made."""

import weakref
from collections import deque
from functools import partial
from math import prod

import torch

from dali_pipes.backends.common.pixels import DTYPE_BYTES, TORCH_DTYPES, empty_images
from dali_pipes.plan.geometry import Pair
from dali_pipes.plan.transforms import Transform

KEPT = 4  # buffers that nobody holds; further ones are freed


class Buffers:
    """Images of (N, 3, H, W) in host memory.

    A buffer is taken again once its tensor, every view of it and every NumPy array or DLPack capsule made of them are gone: they
    all own the tensor's storage, which owns the NumPy array that it is made of, and that array's end is what is waited for.

    Page-locked memory is PyTorch's to keep: its allocator gives a block out again only when the copies out of it have ended, which
    the host cannot see (CachingHostAllocator).

    Args:
        transform: of the images; where it pads batches, a buffer has room for the largest.
        batch_size: images of a full batch.
        pinned: page-locked, for copies to a GPU.
    """

    def __init__(self, transform: Transform, batch_size: int, pinned: bool):
        self._full, self._form = batch_size, (TORCH_DTYPES[transform.dtype], transform.memory_format)
        self._bytes = batch_size * 3 * prod(transform.shape) * DTYPE_BYTES[transform.dtype]
        self._fresh = partial(torch.empty, dtype=torch.uint8, pin_memory=pinned)
        self._memory = self._fresh if pinned else self._again
        self._free: deque[torch.Tensor] = deque(maxlen=KEPT)

    def take(self, count: int, shape: Pair) -> torch.Tensor:
        """(count, 3, *shape), not initialized. A batch that is not full has memory of its own: what saves it saves no more."""
        with torch.inference_mode(False):  # other threads write into it, which a tensor made in inference mode does not allow
            return empty_images(count, shape, *self._form, self._memory if count == self._full else self._fresh)

    def _again(self, count: int) -> torch.Tensor:
        try:
            memory = self._free.pop()
        except IndexError:
            memory = self._fresh(self._bytes)
        owner = memory.numpy()  # a new array each time
        weakref.finalize(owner, self._free.append, memory).atexit = False
        return torch.from_numpy(owner)[:count]
