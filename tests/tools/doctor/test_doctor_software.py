"""Versions, as they are and as they must not be."""

import sys

import pytest
import torch

from dali_pipes.tools.doctor import software
from dali_pipes.tools.doctor.report import Finding
from dali_pipes.tools.doctor.software import (
    LoadedCuda,
    cuda_major,
    installed,
    load_cuda,
    one_cuda,
    python_version,
    pytorch,
)


@pytest.mark.parametrize(
    ("name", "major"),
    [
        ("nvidia-dali-cuda120", 12),
        ("nvidia-dali-cuda130", 13),
        ("nvidia-dali-nightly-cuda110", 11),
        ("cupy-cuda12x", 12),
        ("cupy-cuda117", 11),
        ("nvidia-nvimgcodec-cu12", 12),
        ("cupy", None),
        ("nvidia-ml-py", None),
    ],
)
def test_the_cuda_major_of_a_distribution(name, major):
    assert cuda_major(name) == major


def test_what_is_installed_agrees():
    assert {"python", "torch", "numpy", "pillow"} <= set(installed())
    assert one_cuda().status == "ok"


@pytest.fixture
def made_up(monkeypatch):
    def install(torch_cuda, *names, nvrtc=None, nvjpeg=None, files=None):
        monkeypatch.setattr(software, "installed", lambda: dict.fromkeys(names, "1.0"))
        monkeypatch.setattr(torch.version, "cuda", torch_cuda)
        loaded = LoadedCuda(nvrtc, nvjpeg, files or {})
        monkeypatch.setattr(software, "load_cuda", lambda: loaded)

    return install


@pytest.mark.parametrize(
    ("torch_cuda", "names"),
    [
        ("12.8", ["nvidia-dali-cuda120", "nvidia-dali-cuda130"]),
        (None, ["nvidia-dali-cuda120", "nvidia-nvimgcodec-cu13"]),
        ("13.0", ["cupy-cuda12x", "cupy-cuda13x"]),
    ],
)
def test_who_needs_one_another_cannot_have_two_cuda_majors(made_up, torch_cuda, names):
    made_up(torch_cuda, *names, nvrtc=12, nvjpeg=12)
    finding = one_cuda()
    assert finding.status == "failed" and "install one version" in finding.remedy
    assert (
        all(name in finding.found for name in names)
        and "12" in finding.found
        and "13" in finding.found
    )


@pytest.mark.parametrize(("nvrtc", "seen"), [(None, "finds none"), (12, "loads libnvrtc.so.12")])
def test_cupy_without_its_compiler_is_named_with_the_cupy_that_fits(made_up, nvrtc, seen):
    made_up("12.8", "cupy-cuda13x", nvrtc=nvrtc)
    finding = one_cuda()
    assert finding.status == "failed" and f"libnvrtc.so.13 and {seen}" in finding.found
    assert finding.remedy.endswith("pip install 'dali_pipes[cu12]'")


def test_cupy_with_a_compiler_of_its_own_is_a_matter_of_doubt(made_up):
    made_up("13.2", "cupy-cuda12x", nvrtc=12)
    finding = one_cuda()
    assert (
        finding.status == "warning" and "CuPy of CUDA 12 beside PyTorch of CUDA 13" in finding.found
    )
    assert "dali_pipes[cu13]" in finding.remedy


def test_nvimagecodec_without_its_nvjpeg_is_named(made_up):
    made_up("13.0", "nvidia-dali-cuda130", nvjpeg=12)
    assert "libnvjpeg.so.13, and libnvjpeg.so.12 is loaded" in one_cuda().found
    made_up("13.0", "nvidia-dali-cuda130")
    assert one_cuda().status == "warning" and "and none is loaded" in one_cuda().found


def test_a_library_from_two_places_is_named(made_up):
    paths = ["/opt/cuda/libnvrtc.so.13", "/site/libnvrtc.so.13"]
    made_up("13.0", "cupy-cuda13x", nvrtc=13, files={"libnvrtc.so.13": paths})
    finding = one_cuda()
    assert finding.status == "warning" and " and ".join(paths) in finding.found


def test_dali_of_another_major_is_named_and_no_fault(made_up):
    """As on the H100 of docs/benchmarks/gpu_h100_2026-11-25."""
    names = ("nvidia-dali-cuda120", "nvidia-nvimgcodec-cu12", "cupy-cuda13x")
    made_up("13.0", *names, nvrtc=13, nvjpeg=12)
    assert one_cuda() == Finding(
        "ok",
        "CUDA 12: nvidia-dali-cuda120, nvidia-nvimgcodec-cu12; CUDA 13: cupy-cuda13x, torch. "
        "They share the driver only, which must know CUDA 13",
    )


def test_one_major_is_named_with_who_has_it(made_up):
    made_up("13.0", "nvidia-dali-cuda130", "cupy-cuda13x", nvrtc=13, nvjpeg=13)
    assert one_cuda() == Finding("ok", "CUDA 13: cupy-cuda13x, nvidia-dali-cuda130, torch")
    made_up("13.0")
    assert one_cuda() == Finding("ok", "CUDA 13: torch")
    made_up(None)
    assert one_cuda() == Finding("ok", "no CUDA build is installed")


def test_what_is_loaded_is_seen():
    """In this process, of the packages that are installed."""
    loaded, majors = load_cuda(), {cuda_major(name) for name in installed()} - {None}
    assert majors == {loaded.nvrtc} == {loaded.nvjpeg}
    assert f"libcudart.so.{loaded.nvrtc}" in loaded.files


def test_pytorch_without_cuda(made_up):
    made_up(None)
    assert pytorch().status == "failed" and "a build without CUDA" in pytorch().found
    made_up("12.8")
    assert pytorch() == Finding("ok", f"PyTorch {torch.__version__}, built for CUDA 12.8")


@pytest.mark.parametrize(
    ("version", "status"),
    [((3, 10), "failed"), ((3, 11), "ok"), ((3, 14), "ok"), ((3, 15), "warning")],
)
def test_python(monkeypatch, version, status):
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    finding = python_version()
    assert finding.status == status and ("3.11 to 3.14" in finding.found) == (status != "ok")


@pytest.mark.parametrize("wrong", [("good", ""), ("warning", ""), ("ok", "do something")])
def test_a_finding_that_is_not_ok_says_what_to_do(wrong):
    status, remedy = wrong
    with pytest.raises(ValueError, match="all but ok say what to do"):
        Finding(status, "something", remedy)
