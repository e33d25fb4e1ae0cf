"""PyTorch's operators on the simulated GPU: c/torch_kernels.cpp, compiled for the installed
PyTorch.
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


def install() -> None:
    torch.cuda._sleep = sleep
    torch.ops.load_library(Path(os.environ["SIMULATED_GPU"]) / "torch_kernels.so")
    # Otherwise PyTorch chooses algorithms of libraries whose kernels do not run here.
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
