"""The loaders that deliver on a GPU, as parameters of the tests that every loader must pass."""

import pytest
import torch

import dali_pipes as dp
from dali_pipes.measure.arms import SyntheticConfig

GPU_BACKENDS = {
    "dali_gpu": dp.DaliConfig(device="gpu"),
    "dali_gpu_regions": dp.DaliConfig(device="gpu", decode="region", jpeg_fancy_upsampling=False),
    "torch_to_gpu": dp.TorchConfig(num_workers=1),
    "dali_cpu_to_gpu": dp.DaliConfig(device="cpu"),
    "synthetic_on_gpu": SyntheticConfig(),
}


def needs_cuda(*names, marks=()):
    """These names, as parameters of tests that need a GPU."""
    return [pytest.param(name, marks=[pytest.mark.needs_cuda, *marks], id=name) for name in names]


def needs_cuda_configs(*names):
    """The configs of these names, likewise."""
    return [
        pytest.param(GPU_BACKENDS[name], marks=pytest.mark.needs_cuda, id=name) for name in names
    ]


def simulated():
    """Whether the GPU is that of tests/simulated_gpu: DALI's kernels do not run on it, PyTorch's
    and ours do.
    """
    return torch.cuda.is_available() and torch.cuda.get_device_name().endswith("(simulated)")


def made_by_dali(loader):
    """Whether DALI's kernels make the pixels of a loader on a GPU, which is given by its name or
    its config.
    """
    if isinstance(loader, str):
        return loader.startswith("dali_gpu")
    return isinstance(loader, dp.DaliConfig) and loader.device != "cpu"


def makes_pixels(*loaders):
    """Whether what these loaders deliver here are images, and not whatever was in memory."""
    return not (simulated() and any(map(made_by_dali, loaders)))


def same_bits(one, other):
    """Whether two tensors hold the same, be it no number."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def decodes_with_dali_on_gpu(item):
    """Whether one of the parameters of a test that needs a GPU is such a loader."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return bool(item.get_closest_marker("needs_cuda")) and any(map(made_by_dali, values))
