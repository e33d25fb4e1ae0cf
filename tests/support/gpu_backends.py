"""The loaders that deliver on a GPU, as parameters of the tests that every loader must pass."""

import pytest
import torch

import dali_pipes as dp

GPU_BACKENDS = {
    "dali_gpu": dp.DaliConfig(device="gpu"),
    "dali_gpu_whole": dp.DaliConfig(device="gpu", decode="whole"),
    "torchvision_on_gpu": dp.TorchvisionGpuConfig(),
    "torch_to_gpu": dp.TorchConfig(num_workers=1),
    "dali_cpu_to_gpu": dp.DaliConfig(device="cpu"),
    "cached_on_gpu": dp.CachedConfig(),
    "synthetic_on_gpu": dp.SyntheticConfig(),
}


def needs_cuda(*names, marks=()):
    """These names, as parameters of tests that need a GPU."""
    return [pytest.param(name, marks=[pytest.mark.needs_cuda, *marks], id=name) for name in names]


def needs_cuda_configs(*names):
    """The configs of these names, likewise."""
    return [pytest.param(GPU_BACKENDS[name], marks=pytest.mark.needs_cuda, id=name) for name in names]


def simulated():
    """Whether the GPU is that of tests/simulated_gpu: DALI's kernels do not run on it, PyTorch's and ours do."""
    return torch.cuda.is_available() and torch.cuda.get_device_name().endswith("(simulated)")


def makes_pixels(config):
    """Whether what this loader delivers here are images, and not what happened to be in memory."""
    return not (simulated() and isinstance(config, dp.DaliConfig) and config.device != "cpu")
