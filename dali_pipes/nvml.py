"""What a GPU says of itself, through NVML."""

from collections.abc import Callable
from typing import Any

import pynvml

MIB = 2**20
FIGURES = ("utilization", "sm_utilization", "nvjpg_utilization", "memory_mib", "energy_j")
_NVJPG_ENGINES = 8


class Gpu:
    """One GPU. A figure that it cannot give is None, and `missing` says why.

    Args:
        uuid: as NVML writes it, "GPU-…".

    Attributes:
        missing: the reason for each figure that is not there.

    Raises:
        NoGpu: there is no NVML, or no such GPU.
    """

    def __init__(self, uuid: str):
        self.missing: dict[str, str] = {}
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError as error:
            raise NoGpu(f"NVML: {error}") from None
        self._gpm = self._read("sm_utilization", lambda: _Gpm(self._handle))

    def sample(self) -> dict[str, float | None]:
        """Shares of the time since about the last sample, 0 to 1; MiB used on the whole GPU; joules since the driver was loaded.

        utilization: some kernel ran. sm_utilization: of all multiprocessors, Hopper and later. nvjpg_utilization: JPEG engines.
        """
        utilization = self._read("utilization", lambda: pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100)
        jpg = self._read("nvjpg_utilization", lambda: pynvml.nvmlDeviceGetJpgUtilization(self._handle)[0] / 100)
        return {
            "utilization": utilization,
            "nvjpg_utilization": jpg,
            "memory_mib": self._read("memory_mib", lambda: pynvml.nvmlDeviceGetMemoryInfo(self._handle).used / MIB),
            "energy_j": self._read("energy_j", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3),
            "sm_utilization": None,
        } | (self._gpm.sample() if self._gpm else {})

    def _read(self, figure: str, read: Callable[[], Any]) -> Any:
        if figure in self.missing:
            return None
        try:
            return read()
        except (pynvml.NVMLError, NoGpu) as error:
            self.missing[figure] = f"NVML: {error}"
            return None


class NoGpu(Exception):
    """Nothing to ask; the text says why."""


def driver() -> tuple[str, tuple[int, int]]:
    """The driver's version, and the newest CUDA (major, minor) that it knows.

    Raises:
        NoGpu: there is no driver, or it knows no GPU.
    """
    try:
        pynvml.nvmlInit()
        if not pynvml.nvmlDeviceGetCount():
            raise NoGpu("NVML: the driver knows no GPU")
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return str(pynvml.nvmlSystemGetDriverVersion()), (cuda // 1000, cuda % 1000 // 10)
    except pynvml.NVMLError as error:
        raise NoGpu(f"NVML: {error}") from None


class _Gpm:
    """GPU performance monitoring: averages over the time between two samples. Hopper and later."""

    def __init__(self, handle: Any):
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise NoGpu("this GPU has no performance monitoring (GPM); Hopper and later have")
        self._handle = handle
        self._before, self._now = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(handle, self._now)

    def sample(self) -> dict[str, float]:
        self._before, self._now = self._now, self._before
        pynvml.nvmlGpmSampleGet(self._handle, self._now)
        first = pynvml.NVML_GPM_METRIC_NVJPG_0_UTIL
        wanted = [pynvml.NVML_GPM_METRIC_SM_UTIL, *range(first, first + _NVJPG_ENGINES)]
        ask = pynvml.c_nvmlGpmMetricsGet_t()
        ask.version, ask.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(wanted)
        ask.sample1, ask.sample2 = self._before, self._now
        for place, metric in enumerate(wanted):
            ask.metrics[place].metricId = metric
        pynvml.nvmlGpmMetricsGet(ask)
        answers = ask.metrics[: len(wanted)]
        sm, *engines = [each.value / 100 if each.nvmlReturn == pynvml.NVML_SUCCESS else None for each in answers]
        there = [engine for engine in engines if engine is not None]
        found = {"sm_utilization": sm, "nvjpg_utilization": sum(there) / len(there) if there else None}
        return {figure: value for figure, value in found.items() if value is not None}
