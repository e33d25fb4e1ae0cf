"""Whether PyTorch can work on a GPU here, which is tried, since PyTorch's own answer may be wrong;
which packages of CUDA fit it; and moments on the GPU's clock.
"""

import re

import torch

# where PyTorch's messages go on with advice on what to download
_ADVICE = re.compile(r"\.? (Please|Alternatively|For debugging)\b|\n", re.IGNORECASE)


def why_no_gpu() -> str | None:
    """PyTorch's own reason why it cannot work on a GPU; None if it can. This initializes CUDA.

    `torch.cuda.is_available()` alone does not tell: with PYTORCH_NVML_BASED_CUDA_CHECK=1, which an
    import of Lightning sets for the whole program, it counts GPUs, also those whose driver is too
    old for PyTorch.
    """
    try:
        torch.cuda.current_device()
    except (RuntimeError, AssertionError) as error:
        return _ADVICE.split(str(error))[0].rstrip(".")
    return None


def gpu_name() -> str | None:
    """The name of the current GPU; None if PyTorch can work on none."""
    try:
        return torch.cuda.get_device_name() if torch.cuda.is_available() else None
    except RuntimeError:  # is_available() counted a GPU that PyTorch cannot use, as above
        return None


def cuda_major() -> int | None:
    """The CUDA version that PyTorch is built for; None if for none."""
    return int(torch.version.cuda.split(".")[0]) if torch.version.cuda else None


def cuda_extra() -> str:
    """The extra of this package whose DALI and CuPy are for PyTorch's CUDA.

    Without CUDA either of them has a DALI that works on the CPU.
    """
    return "cu12" if cuda_major() == 12 else "cu13"


def install_cuda() -> str:
    """What to do where DALI or CuPy is missing."""
    return f"pip install 'dali_pipes[{cuda_extra()}]'"


def mark() -> torch.cuda.Event:
    """Returns an event on the current stream: the moment at which the GPU gets to it, by its own
    clock. It is read later, so nothing waits for the GPU.
    """
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()  # type: ignore[no-untyped-call]
    return event


def seconds_between(first: torch.cuda.Event, second: torch.cuda.Event) -> float:
    """Returns the seconds from one event to the other, both of which must have happened."""
    return float(first.elapsed_time(second)) / 1e3  # type: ignore[no-untyped-call]
