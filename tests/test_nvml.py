"""NVML as it is documented; a real GPU is asked in tests/gpu."""

from types import SimpleNamespace

import pynvml
import pytest

from dali_pipes import nvml
from dali_pipes.nvml import FIGURES, Gpu, NoGpu


class NotSupported(pynvml.NVMLError):
    def __init__(self):
        super().__init__(pynvml.NVML_ERROR_NOT_SUPPORTED)


def unsupported(*_):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def metrics(ask):
    for answer in ask.metrics[: ask.numMetrics]:
        there = answer.metricId in (pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_NVJPG_0_UTIL)
        answer.nvmlReturn = pynvml.NVML_SUCCESS if there else pynvml.NVML_ERROR_NOT_SUPPORTED
        answer.value = 40.0 if answer.metricId == pynvml.NVML_GPM_METRIC_SM_UTIL else 90.0


@pytest.fixture
def driver(monkeypatch):
    """A Hopper GPU."""
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=75),
        "nvmlDeviceGetJpgUtilization": lambda _: [50, 1000],
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=3 * 2**30),
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: 12_500,
        "nvmlGpmQueryDeviceSupport": lambda _: SimpleNamespace(isSupportedDevice=1),
        "nvmlGpmSampleAlloc": pynvml.c_nvmlGpmSample_t,
        "nvmlGpmSampleGet": lambda *_: None,
        "nvmlGpmMetricsGet": metrics,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    return lambda name, answer: monkeypatch.setattr(pynvml, name, answer)


def test_all_figures_of_a_hopper(driver):
    gpu = Gpu("GPU-1")
    expected = {"utilization": 0.75, "sm_utilization": 0.4, "nvjpg_utilization": 0.9, "memory_mib": 3072.0, "energy_j": 12.5}
    assert gpu.sample() == pytest.approx(expected) and set(expected) == set(FIGURES)
    assert gpu.missing == {}


def test_an_older_gpu_says_what_it_cannot(driver):
    driver("nvmlGpmQueryDeviceSupport", lambda _: SimpleNamespace(isSupportedDevice=0))
    driver("nvmlDeviceGetTotalEnergyConsumption", unsupported)
    gpu = Gpu("GPU-1")
    sample = gpu.sample()
    assert sample["sm_utilization"] is None and sample["energy_j"] is None and sample["nvjpg_utilization"] == 0.5
    assert set(gpu.missing) == {"sm_utilization", "energy_j"}
    assert "Hopper and later" in gpu.missing["sm_utilization"] and "Not Supported" in gpu.missing["energy_j"]


def test_a_figure_that_fails_once_is_not_asked_for_again(driver):
    asked = []
    driver("nvmlDeviceGetJpgUtilization", lambda handle: (asked.append(handle), unsupported())[1])
    gpu = Gpu("GPU-1")
    gpu.sample(), gpu.sample()
    assert len(asked) == 1


def test_without_a_driver_there_is_a_reason(monkeypatch):
    def absent():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(nvml.pynvml, "nvmlInit", absent)
    with pytest.raises(NoGpu, match="NVML: NVML Shared Library Not Found"):
        Gpu("GPU-1")
