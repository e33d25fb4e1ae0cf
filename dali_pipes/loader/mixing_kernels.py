"""The pixels of MixUp and CutMix: CuPy kernels (mixing.cu) for CUDA tensors, elsewhere PyTorch.

Both give the same numbers. `cupy_stream` is for users' own kernels too: docs/augmentation.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dali_pipes.errors import ConfigError
from dali_pipes.system.cuda import install_cuda

KERNELS = Path(__file__).with_name("mixing.cu")
_C_TYPES = {
    torch.float32: "float",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
    torch.uint8: "unsigned char",
}
_THREADS, _IMAGES = 256, 8  # threads of a block, and images of a thread: IMAGES in mixing.cu


def blend_with_previous(images: Tensor, own: float) -> Tensor:
    """own × each image + (1 - own) × the one before it; the last comes before the first."""
    other = 1.0 - own
    if images.is_cuda:
        return _launch("mixup", images, np.float32(own), np.float32(other))
    mixed = torch.empty_like(images)
    for at, image in enumerate(images):  # one at a time, so that it stays in the CPU's cache
        sum = (images[at - 1].float() * other).add_(image.float() * own)
        mixed[at] = sum if images.is_floating_point() else sum.round_()
    return mixed


def paste_previous(images: Tensor, box: tuple[int, int, int, int]) -> Tensor:
    """Each image with the box (left, top, right, bottom) of the one before it; the last comes
    before the first.
    """
    if images.is_cuda:
        channels, height, width = images.shape[1:]
        step = 1 if images.is_contiguous() else channels  # between pixels of a row, in values
        return _launch("cutmix", images, *map(np.int32, (step, height, width, *box)))
    left, top, right, bottom = box
    mixed = images.clone()
    mixed[..., top:bottom, left:right] = images[..., top:bottom, left:right].roll(1, 0)
    return mixed


@contextmanager
def cupy_stream(device: torch.device) -> Iterator[None]:
    """Makes a `with` block in which CuPy works on this device and on PyTorch's current stream, so
    that neither has to wait for the other.

    The block does nothing if `device` is not a GPU.
    """
    if device.type != "cuda":
        yield
        return
    cupy = _import_cupy()

    with torch.cuda.device(device):
        current = torch.cuda.current_stream()
        with cupy.cuda.Device(device.index), _as_cupy(current):
            yield


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise ConfigError(
            f"kernels on a GPU, such as those of MixUp and CutMix, need CuPy ({error}): "
            f"{install_cuda()}"
        ) from None
    return cupy


def _as_cupy(stream: torch.cuda.Stream) -> Any:
    """The same stream as CuPy takes it. From CuPy 14 on it asks for `__cuda_stream__`, which
    PyTorch's streams have from 2.10 on.
    """
    import cupy

    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(stream)
    return cupy.cuda.ExternalStream(stream.cuda_stream, stream.device_index)


def _launch(kernel: str, images: Tensor, *arguments: np.generic) -> Tensor:
    """Runs a kernel on the current stream and returns its result, a new tensor.

    CuPy is given addresses, not arrays: its `from_dlpack` crashes on bfloat16 (13.3: cupy issue
    8801), refuses it (13.6), or needs the package ml_dtypes for it (14.2: cupy/_core/dlpack.pyx,
    line 480).
    """
    # the kernels take images one after the other, in any order of their own values
    if not (images.is_contiguous() or images.is_contiguous(memory_format=torch.channels_last)):
        images = images.contiguous()
    mixed = torch.empty_like(images)
    count, size = len(images), images[0].numel()

    # a thread reads 16 bytes at once, if each image begins at a multiple of these
    at_once = 16 // images.element_size()
    if size % at_once or images.data_ptr() % 16 or mixed.data_ptr() % 16:
        at_once = 1

    with cupy_stream(images.device):
        function = _compiled(f"{kernel}<{_C_TYPES[images.dtype]}, {at_once}>", images.device.index)
        # a thread takes `at_once` values of each of _IMAGES images
        blocks = (-(-size // (at_once * _THREADS)), -(-count // _IMAGES))
        pointers = np.uintp(images.data_ptr()), np.uintp(mixed.data_ptr())
        function(blocks, (_THREADS,), (*pointers, np.int32(count), np.int32(size), *arguments))
        # PyTorch must not give the memory away before the kernel has read it
        images.record_stream(torch.cuda.current_stream())
    return mixed


@lru_cache
def _compiled(name: str, device: int) -> Any:
    """Compiles one instance of a kernel template, for one device; CuPy caches it on disk."""
    import cupy

    return cupy.RawModule(
        code=KERNELS.read_text(), options=("-std=c++17",), name_expressions=(name,)
    ).get_function(name)
