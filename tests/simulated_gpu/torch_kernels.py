"""PyTorch's operators on the simulated GPU, and its memory: c/torch_kernels.cpp and
c/torch_memory.cpp, compiled for the installed PyTorch.
"""

import ctypes
import os
from pathlib import Path

import torch


def sleep(cycles: int) -> None:
    """For `torch.cuda._sleep`: what is queued on the current stream from now on happens only when
    somebody waits for it.
    """
    device = ctypes.CDLL("libcuda.so.1")
    device.stream_named.restype = ctypes.c_void_p
    stream = device.stream_named(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    device.queue_delay(ctypes.c_void_p(stream))


def poisons_memory() -> bool:
    """Whether memory that PyTorch gives back is poisoned."""
    return os.environ.get("SIMULATED_GPU_POISON") == "1"


def install() -> None:
    torch.cuda._sleep = sleep
    built = Path(os.environ["SIMULATED_GPU"])
    torch.ops.load_library(built / "torch_kernels.so")
    if poisons_memory():
        ctypes.CDLL(str(built / "torch_memory.so")).use_poisoned_memory()
    # Otherwise PyTorch chooses algorithms of libraries whose kernels do not run here.
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
