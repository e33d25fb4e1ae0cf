"""The GPUs, their driver, and their telemetry."""

import os
import time

import torch

from dali_pipes.system.nvml import FIGURES, Gpu, NoGpu, driver
from dali_pipes.tools.doctor.report import Finding, failed, ok, size, warning

CPU_LOADERS = "CPU loaders work: loader=dali_cpu"


def driver_and_gpus() -> Finding:
    """Whether PyTorch can compute on a GPU; if not, whether there is none or the driver is too old for PyTorch's CUDA."""
    try:
        version, cuda = driver()
    except NoGpu as error:
        return failed(f"no GPU: {error}", f"install NVIDIA's driver, or start the container with --gpus all. {CPU_LOADERS}")
    versions = f"driver {version} for CUDA {cuda[0]}.{cuda[1]}"
    if torch.version.cuda is None:
        return failed(f"no GPU for this build of PyTorch; {versions}", f"install a build with CUDA. {CPU_LOADERS}")
    if cuda[0] < int(torch.version.cuda.split(".")[0]):
        return failed(
            f"{versions} is too old: PyTorch is built for CUDA {torch.version.cuda}",
            f"update the driver, or install the builds for CUDA {cuda[0]}. {CPU_LOADERS}",
        )
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if visible is None else f"; CUDA_VISIBLE_DEVICES is {visible!r}"
        return failed(f"no GPU that PyTorch can use; {versions}{hidden}", f"nvidia-smi -L must list one. {CPU_LOADERS}")
    if not adds():
        return failed(f"the GPU computes wrongly; {versions}", f"nvidia-smi -q shows its errors; take another one. {CPU_LOADERS}")
    return ok(f"{', '.join(map(_describe, range(torch.cuda.device_count())))}; {versions}")


def adds() -> bool:
    """Whether 1 + 1 is 2 on the GPU. Raises on a GPU that this build of PyTorch has no kernels for."""
    return bool((torch.ones(1000, device="cuda") + 1 == 2).all())


def nvml_figures() -> Finding:
    """Each figure of telemetry, or why it is not available."""
    gpu = Gpu(uuid())
    time.sleep(0.2)
    sample = gpu.sample()
    units = {"memory_mib": "{:,.0f} MiB", "energy_j": "{:,.0f} J"}
    there = [f"{name} {units.get(name, '{:.0%}').format(value)}" for name in FIGURES if (value := sample[name]) is not None]
    absent = [f"{name} ({gpu.missing.get(name, 'no reason given')})" for name in FIGURES if sample[name] is None]
    if not absent:
        return ok(", ".join(there))
    return warning(
        f"{', '.join(there) or 'nothing'}; not: {', '.join(absent)}", "benchmark results lack them; nothing else needs them"
    )


def uuid() -> str:
    """The first visible GPU, by NVML's UUID."""
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def _describe(index: int) -> str:
    gpu = torch.cuda.get_device_properties(index)
    return f"{gpu.name} ({size(gpu.total_memory)}, compute capability {gpu.major}.{gpu.minor})"
