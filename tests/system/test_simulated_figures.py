"""What is measured on the simulated GPU of the tests is not published. Here only its name is
simulated.
"""

import json

import pytest
import torch

from dali_pipes.errors import ConfigError
from dali_pipes.measure.protocol import Trials
from dali_pipes.system.provenance import gpu_is_simulated, provenance
from dali_pipes.tools.benchmark.sweep import ResultError, load_result
from dali_pipes.tools.doctor.config import DoctorConfig
from dali_pipes.tools.doctor.run import all_checks

NAME = "NVIDIA H100 80GB HBM3 (simulated)"


@pytest.fixture
def named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: NAME)


def test_a_provenance_says_so(named):
    assert provenance({}, [])["hardware"]["gpu"] == NAME


def test_a_gpu_whose_driver_is_too_old_has_no_name(monkeypatch):
    """PyTorch counts it where an import of Lightning has set PYTORCH_NVML_BASED_CUDA_CHECK."""

    def raise_(device=None):
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", raise_)
    assert provenance({}, [])["hardware"]["gpu"] is None and not gpu_is_simulated()


def test_nothing_is_timed(named, tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"\(simulated\): the GPU is simulated for tests, .* measure on a real one",
    ):
        Trials(None, None, tmp_path)


def test_a_saved_result_is_not_read(tmp_path):
    result = {"schema": 3, "provenance": {"hardware": {"gpu": NAME}}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    with pytest.raises(
        ResultError,
        match=r"measured on NVIDIA H100 80GB HBM3 \(simulated\), whose figures mean nothing",
    ):
        load_result(tmp_path)


def test_the_doctor_does_not_pass_it(named):
    checks = {check.name: check for check in all_checks(DoctorConfig(), None)}
    finding = checks["simulated"].run(10)
    assert finding.status == "failed" and NAME in finding.found and "real GPU" in finding.remedy
