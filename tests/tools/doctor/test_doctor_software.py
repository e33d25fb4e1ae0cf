"""Versions, as they are and as they must not be."""

import sys

import pytest
import torch

from dali_pipes.tools.doctor import software
from dali_pipes.tools.doctor.report import Finding
from dali_pipes.tools.doctor.software import (
    cuda_major,
    installed,
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
    def install(torch_cuda, *names):
        monkeypatch.setattr(software, "installed", lambda: dict.fromkeys(names, "1.0"))
        monkeypatch.setattr(torch.version, "cuda", torch_cuda)

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
    made_up(torch_cuda, *names)
    finding = one_cuda()
    assert finding.status == "failed" and "install one version" in finding.remedy
    assert (
        all(name in finding.found for name in names)
        and "12" in finding.found
        and "13" in finding.found
    )


def test_cupy_with_a_compiler_of_its_own_is_a_matter_of_doubt(made_up):
    made_up("13.2", "cupy-cuda12x")
    finding = one_cuda()
    assert (
        finding.status == "warning" and "CuPy of CUDA 12 beside PyTorch of CUDA 13" in finding.found
    )
    assert "dali_pipes[cu13]" in finding.remedy


def test_dali_of_another_major_is_named_and_no_fault(made_up):
    """As on the H100 of docs/benchmarks/gpu_h100_2026-11-25."""
    names = ("nvidia-dali-cuda120", "nvidia-nvimgcodec-cu12", "cupy-cuda13x")
    made_up("13.0", *names)
    assert one_cuda() == Finding(
        "ok",
        "CUDA 12: nvidia-dali-cuda120, nvidia-nvimgcodec-cu12; CUDA 13: cupy-cuda13x, torch. "
        "They share the driver only, which must know CUDA 13",
    )


def test_one_major_is_named_with_who_has_it(made_up):
    made_up("13.0", "nvidia-dali-cuda130", "cupy-cuda13x")
    assert one_cuda() == Finding("ok", "CUDA 13: cupy-cuda13x, nvidia-dali-cuda130, torch")
    made_up("13.0")
    assert one_cuda() == Finding("ok", "CUDA 13: torch")
    made_up(None)
    assert one_cuda() == Finding("ok", "no CUDA build is installed")


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
