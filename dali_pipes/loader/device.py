"""The device on which a loader's batches arrive, as `build_loader(device=…)` asks for it."""

import logging

import torch

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.checks import describe_value
from dali_pipes.errors import ConfigError, NoGpuError
from dali_pipes.system.cuda import why_no_gpu

log = logging.getLogger(__name__)


def resolve_device(device: str | torch.device, config: LoaderConfig) -> torch.device:
    """Returns the device that is meant, a GPU with its number.

    Raises:
        ConfigError: there is no such device, or the loader cannot make batches on it.
        NoGpuError: PyTorch can use no GPU here.
    """
    what = (
        f"{type(config).__name__}(device='gpu')"
        if hasattr(config, "device")
        else type(config).__name__
    )
    try:
        target = torch.device(_choose_device(config) if device == "auto" else device)
    except (RuntimeError, TypeError):
        target = torch.device("meta")  # refused in the next lines, like any other device

    if target.type not in ("cpu", "cuda") or isinstance(device, bool):
        raise ConfigError(f"device is {describe_value(device)}; choose auto, cpu, cuda or cuda:N")
    if config.needs_gpu and target.type != "cuda":
        raise ConfigError(
            f"{what} makes batches on a GPU, but device={device} wants them elsewhere; leave "
            "device at auto"
        )

    if target.type == "cuda" and (reason := why_no_gpu()):
        wanted = what if config.needs_gpu else f"device={device}"
        instead = "use DaliConfig(device='cpu') or TorchConfig(), or check the driver (nvidia-smi)"
        message = f"{wanted}, but PyTorch sees no GPU here; {instead}. PyTorch says: {reason}"
        raise NoGpuError(message, config.needs_gpu, reason)
    if target.type == "cuda" and (target.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(
            f"device={device}, but PyTorch sees {count} GPUs here, cuda:0 to cuda:{count - 1}; "
            "choose one of these"
        )

    if target.type == "cuda" and target.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return target


def _choose_device(config: LoaderConfig) -> str:
    """The device of "auto": the GPU, if the loader needs one or PyTorch can use one."""
    if config.needs_gpu:
        return "cuda"
    if not torch.cuda.is_available():
        return "cpu"

    if reason := why_no_gpu():  # PyTorch warns of it only where is_available() is False
        log.warning(
            (
                "the loader works on the CPU, since PyTorch cannot use the GPU that is here; "
                "PyTorch says: %s"
            ),
            reason,
        )
        return "cpu"
    return "cuda"
