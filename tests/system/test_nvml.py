"""NVML as it is documented; a real GPU is asked in tests/gpu."""

import ctypes
from types import SimpleNamespace

import pynvml
import pytest

from dali_pipes.system import nvml
from dali_pipes.system.nvml import FIGURES, Gpu, NoGpu


def unsupported(*_):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def metrics(ask):
    for answer in ask.metrics[: ask.numMetrics]:
        there = answer.metricId in (
            pynvml.NVML_GPM_METRIC_SM_UTIL,
            pynvml.NVML_GPM_METRIC_NVJPG_0_UTIL,
        )
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
    expected = {
        "utilization": 0.75,
        "sm_utilization": 0.4,
        "nvjpg_utilization": 0.9,
        "memory_mib": 3072.0,
        "energy_j": 12.5,
    }
    assert gpu.sample() == pytest.approx(expected) and set(expected) == set(FIGURES)
    assert gpu.missing == {}


def test_an_older_gpu_says_what_it_cannot(driver):
    driver("nvmlGpmQueryDeviceSupport", lambda _: SimpleNamespace(isSupportedDevice=0))
    driver("nvmlDeviceGetTotalEnergyConsumption", unsupported)
    gpu = Gpu("GPU-1")
    sample = gpu.sample()
    assert (
        sample["sm_utilization"] is None
        and sample["energy_j"] is None
        and sample["nvjpg_utilization"] == 0.5
    )
    assert set(gpu.missing) == {"sm_utilization", "energy_j"}
    assert (
        "Hopper and later" in gpu.missing["sm_utilization"]
        and "Not Supported" in gpu.missing["energy_j"]
    )


def test_a_figure_that_fails_once_is_not_asked_for_again(driver):
    asked = []
    driver("nvmlDeviceGetJpgUtilization", lambda handle: (asked.append(handle), unsupported())[1])
    gpu = Gpu("GPU-1")
    gpu.sample(), gpu.sample()
    assert len(asked) == 1


ERRORS = {
    "the GPU is lost": (pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST), "NVML: GPU is lost"),
    "an old driver": (
        pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        "NVML: Function Not Found",
    ),
    "an old pynvml": (
        AttributeError("no attribute 'nvmlGpm'"),
        "NVML: AttributeError: no attribute 'nvmlGpm'",
    ),
    "ctypes": (
        ctypes.ArgumentError("argument 1: wrong type"),
        "NVML: ArgumentError: argument 1: wrong type",
    ),
    "the library": (
        OSError("cannot open shared object"),
        "NVML: OSError: cannot open shared object",
    ),
}
SOURCES = {
    "nvmlDeviceGetUtilizationRates": "utilization",
    "nvmlDeviceGetMemoryInfo": "memory_mib",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_j",
    "nvmlDeviceGetJpgUtilization": "nvjpg_utilization",
    "nvmlGpmSampleGet": "sm_utilization",
    "nvmlGpmMetricsGet": "sm_utilization",
}


def fails(error):
    def fail(*_):
        raise error

    return fail


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ERRORS)
def test_whatever_fails_in_mid_run_costs_that_figure_and_no_other(driver, source, name):
    error, why = ERRORS[name]
    gpu = Gpu("GPU-1")
    before = gpu.sample()
    driver(source, fails(error))
    figure, after = SOURCES[source], gpu.sample()
    assert gpu.missing == {figure: why} and set(after) == set(FIGURES)
    by_gpm = {"sm_utilization", "nvjpg_utilization"} if figure == "sm_utilization" else set()
    others = set(FIGURES) - {figure} - by_gpm
    assert {each: after[each] for each in others} == {each: before[each] for each in others}
    if figure == "nvjpg_utilization":  # GPM has it too
        assert after[figure] == before[figure]
    else:
        assert after[figure] is None
    if by_gpm:  # and what knew it before GPM did is asked instead
        assert after["nvjpg_utilization"] == 0.5


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize(
    "source", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleGet"]
)
def test_a_gpu_that_cannot_begin_to_monitor_itself_is_still_asked_for_the_rest(
    driver, source, name
):
    error, why = ERRORS[name]
    driver(source, fails(error))
    gpu = Gpu("GPU-1")
    sample = gpu.sample()
    assert gpu.missing == {"sm_utilization": why}
    assert (
        sample["sm_utilization"] is None
        and sample["utilization"] == 0.75
        and sample["nvjpg_utilization"] == 0.5
    )


def test_a_pynvml_without_the_function_or_the_metric(driver, monkeypatch):
    monkeypatch.delattr(pynvml, "nvmlDeviceGetJpgUtilization")
    monkeypatch.delattr(pynvml, "NVML_GPM_METRIC_NVJPG_0_UTIL")
    gpu = Gpu("GPU-1")
    sample = gpu.sample()
    assert (
        sample["nvjpg_utilization"] is None
        and sample["sm_utilization"] is None
        and sample["energy_j"] == 12.5
    )
    assert "nvmlDeviceGetJpgUtilization" in gpu.missing["nvjpg_utilization"]
    assert "NVML_GPM_METRIC_NVJPG_0_UTIL" in gpu.missing["sm_utilization"]


def test_a_metric_without_a_value_has_a_reason_and_is_asked_for_again(driver):
    """As of an interval that was too short."""

    def nothing(ask):
        for answer in ask.metrics[: ask.numMetrics]:
            answer.nvmlReturn = pynvml.NVML_ERROR_NO_DATA

    driver("nvmlGpmMetricsGet", nothing)
    gpu = Gpu("GPU-1")
    assert (
        gpu.sample()["sm_utilization"] is None and "gave no value" in gpu.missing["sm_utilization"]
    )
    driver("nvmlGpmMetricsGet", metrics)
    assert gpu.sample()["sm_utilization"] == pytest.approx(0.4)


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("source", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_a_gpu_that_cannot_be_asked_at_all(driver, source, name):
    error, why = ERRORS[name]
    driver(source, fails(error))
    with pytest.raises(NoGpu) as caught:
        Gpu("GPU-1")
    assert str(caught.value) == why


@pytest.mark.parametrize("name", ERRORS)
def test_a_driver_that_cannot_be_asked(driver, name):
    error, why = ERRORS[name]
    driver("nvmlDeviceGetCount", lambda: 1)
    driver("nvmlSystemGetCudaDriverVersion_v2", fails(error))
    with pytest.raises(NoGpu) as caught:
        nvml.driver()
    assert str(caught.value) == why


def test_without_a_driver_there_is_a_reason(monkeypatch):
    def absent():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(nvml.pynvml, "nvmlInit", absent)
    with pytest.raises(NoGpu, match="NVML: NVML Shared Library Not Found"):
        Gpu("GPU-1")
