"""Who holds a GPU's memory, and giving back what is kept for later; a real GPU is asked in
tests/gpu.
"""

from types import SimpleNamespace

import pynvml
import pytest
import torch

import dali_pipes as dp
from dali_pipes.system import gpu_memory as module
from dali_pipes.system.gpu_memory import GIB, GpuMemory, release_if_short

GPU = torch.device("cuda", 0)


@pytest.fixture
def released(monkeypatch):
    """What was given back, in order."""
    import nvidia.dali.backend

    calls = []
    monkeypatch.setattr(nvidia.dali.backend, "ReleaseUnusedMemory", lambda: calls.append("DALI"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("PyTorch"))
    return calls


@pytest.fixture
def gpu(monkeypatch):
    """80 GiB, of which PyTorch has 60, 55 of them in tensors, and this program 66; 1 is free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 60 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 55 * GIB)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1")
    )
    monkeypatch.setattr(module.os, "getpid", lambda: 7)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: uuid)
    monkeypatch.setattr(
        pynvml, "nvmlGpmQueryDeviceSupport", lambda handle: SimpleNamespace(isSupportedDevice=0)
    )
    processes = [
        SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in ((3, 9 * GIB), (7, 66 * GIB))
    ]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: processes)
    return processes


def test_what_dali_holds_is_what_the_program_has_beside_pytorch(gpu):
    held = module.gpu_memory(GPU)
    assert held == GpuMemory(80 * GIB, 1 * GIB, 55 * GIB, 60 * GIB, 66 * GIB)
    assert str(held) == (
        "PyTorch holds 60.0, 55.0 of them in tensors; DALI and CUDA itself in this program "
        "6.0; other programs 13.0"
    )


def test_where_nvml_does_not_know_the_program_the_others_are_together(gpu):
    gpu.pop()
    assert "others, which are DALI, CUDA itself and other programs, 19.0" in str(
        module.gpu_memory(GPU)
    )


@pytest.mark.parametrize(("free", "expected"), [(9, ["DALI", "PyTorch"]), (11, [])])
def test_memory_is_given_back_if_it_is_short(released, monkeypatch, free, expected):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * GIB, 80 * GIB))
    assert release_if_short(GPU) == bool(expected) and released == expected


def test_without_a_gpu_nothing_is_given_back(released):
    assert not release_if_short(torch.device("cpu")) and released == []


@pytest.mark.parametrize(("release", "expected"), [(False, []), (True, ["DALI", "PyTorch"])])
def test_a_loader_is_closed_with_what_is_kept_for_later_or_without(
    manifest, released, release, expected
):
    loader = dp.build_loader(
        manifest,
        dp.DaliConfig(device="cpu", num_threads=1),
        transform=dp.TrainTransform(size=32),
        batch_size=8,
    )
    next(iter(loader))
    loader.close(release=release)
    assert released == expected
    with pytest.raises(RuntimeError, match="the loader is closed"):
        iter(loader)


def test_dalis_own_function_is_there_and_does_no_harm(manifest):
    """Its name is DALI's; a loader that runs goes on."""
    config = dp.DaliConfig(device="cpu", num_threads=1, resize="dali")
    with dp.build_loader(
        manifest, config, transform=dp.TrainTransform(size=32), batch_size=8
    ) as loader:
        batches = iter(loader)
        next(batches)
        module.release_unused()
        assert next(batches).ids.tolist() == loader.plan.batch(0, 1).ids.tolist()


def test_explain_says_who_holds_the_memory_of_a_gpu(manifest, gpu, monkeypatch):
    """DALI's memory is its own; what lies in PyTorch's needs no word."""
    with dp.build_loader(
        manifest, dp.DaliConfig(device="cpu"), transform=dp.TrainTransform(size=32), batch_size=8
    ) as loader:
        before, described = loader.explain(), loader._work.description
        assert "GiB" not in before
        on_gpu = described._replace(gpu=GPU)
        monkeypatch.setattr(type(loader._work), "description", on_gpu)
        assert loader.explain() == f"{before}; in GiB, {module.gpu_memory(GPU)}"
