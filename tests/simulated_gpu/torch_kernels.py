"""PyTorch's operators on the simulated GPU: c/torch_kernels.cpp, compiled for the installed PyTorch."""

import os
from pathlib import Path

import torch


def install() -> None:
    torch.ops.load_library(Path(os.environ["SIMULATED_GPU"]) / "torch_kernels.so")
    # Otherwise PyTorch chooses algorithms of libraries whose kernels do not run here.
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
