"""Who holds the memory of a GPU, and giving back what DALI and PyTorch keep of it for later."""

import os
import sys
from typing import NamedTuple

import torch

from dali_pipes.system.nvml import Gpu, NoGpu

GIB = 2**30
SHORT = 1 / 8  # of a GPU's memory; with less free, what is kept for later is given back


class GpuMemory(NamedTuple):
    """Bytes of a GPU.

    Attributes:
        in_tensors: of this program.
        pytorch: all that PyTorch's allocator has taken in this program, in tensors and for later.
        program: all of this program's; None: NVML does not say, as in a container that has process
            numbers of its own.
    """

    total: int
    free: int
    in_tensors: int
    pytorch: int
    program: int | None

    def __str__(self) -> str:
        pytorch = (
            f"PyTorch holds {self.pytorch / GIB:.1f}, {self.in_tensors / GIB:.1f} of them in "
            "tensors"
        )
        others = self.total - self.free - self.pytorch
        if self.program is None:
            return (
                f"{pytorch}; others, which are DALI, CUDA itself and other programs, "
                f"{others / GIB:.1f}"
            )
        beside = max(0, self.program - self.pytorch)
        rest = max(0, self.total - self.free - self.program)
        return (
            f"{pytorch}; DALI and CUDA itself in this program {beside / GIB:.1f}; other "
            f"programs {rest / GIB:.1f}"
        )


def gpu_memory(device: torch.device) -> GpuMemory:
    free, total = torch.cuda.mem_get_info(device)
    return GpuMemory(
        total,
        free,
        torch.cuda.memory_allocated(device),
        torch.cuda.memory_reserved(device),
        _of_program(device),
    )


def release_unused() -> None:
    """Gives back to the GPU, and to the host, what DALI's and PyTorch's allocators keep for later
    and nothing uses.

    Pipelines may be running. What comes next allocates anew, which takes some milliseconds.
    """
    release_unused_of_dali()
    torch.cuda.empty_cache()


def release_unused_of_dali() -> None:
    """Likewise of DALI alone, if the program uses it: on all GPUs, and its page-locked memory."""
    if dali := sys.modules.get("nvidia.dali.backend"):
        dali.ReleaseUnusedMemory()


def release_if_short(device: torch.device) -> bool:
    """`release_unused` if less than an eighth of this GPU's memory is free; whether it was. False
    for another device.
    """
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    short = free < SHORT * total
    if short:
        release_unused()
    return short


def _of_program(device: torch.device) -> int | None:
    try:
        return Gpu(f"GPU-{torch.cuda.get_device_properties(device).uuid}").memory_of(os.getpid())
    except (NoGpu, AttributeError):
        # PyTorch's properties have a uuid since 2.7, and a made-up GPU has none
        return None
