"""Whether PyTorch can work on a GPU here, by trying it."""

import re

import torch

# PyTorch goes on with what to download where
_ADVICE = re.compile(r"\.? (Please|Alternatively|For debugging)\b|\n", re.IGNORECASE)


def why_no_gpu() -> str | None:
    """PyTorch's own reason; None: it can. CUDA is initialized.

    `torch.cuda.is_available()` alone does not say: with PYTORCH_NVML_BASED_CUDA_CHECK=1, which an
    import of Lightning sets for the whole program, it counts GPUs, also those that have a driver
    too old for PyTorch.
    """
    try:
        torch.cuda.current_device()
    except (RuntimeError, AssertionError) as error:
        return _ADVICE.split(str(error))[0].rstrip(".")
    return None


def gpu_name() -> str | None:
    """Of the current GPU; None: PyTorch can work on none."""
    try:
        return torch.cuda.get_device_name() if torch.cuda.is_available() else None
    except RuntimeError:  # it counts one, as above
        return None
