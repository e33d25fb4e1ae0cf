"""Tells who holds the memory of a GPU, and gives back what DALI and PyTorch keep for later."""

import os
import sys
from typing import NamedTuple

import torch

from dali_pipes.system.nvml import Gpu, NoGpu

GIB = 2**30
SHORT = 1 / 8  # of a GPU's memory; if less is free, what is kept for later is given back


class GpuMemory(NamedTuple):
    """How many bytes of a GPU's memory are held by whom.

    Attributes:
        in_tensors: in this program's tensors.
        pytorch: all that PyTorch's allocator has taken in this program, for tensors and for later.
        program: all that this program holds; None if NVML does not say, as in a container that has
            process numbers of its own.
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

        # CUDA's and NVML's figures are not of one moment, so a difference may be negative
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
    """Gives the memory that DALI's and PyTorch's allocators keep for later back to the GPU and the
    host.

    Pipelines may be running. What comes next allocates anew, which takes some milliseconds.
    """
    release_unused_of_dali()
    torch.cuda.empty_cache()


def release_unused_of_dali() -> None:
    """Gives back what DALI alone keeps for later, on all GPUs and in page-locked memory; does
    nothing if the program does not use DALI.
    """
    # not imported for this: a program that has not imported it holds no memory of it
    if dali := sys.modules.get("nvidia.dali.backend"):
        dali.ReleaseUnusedMemory()


def release_if_short(device: torch.device) -> bool:
    """Calls `release_unused` if less than an eighth of this GPU's memory is free, and returns
    whether it did. False for another device.
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
        # PyTorch's properties have had a uuid since 2.7, and a GPU that a test makes up has none
        return None
