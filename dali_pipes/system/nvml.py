"""Figures of a GPU from NVML: use, memory and energy, and those of single engines.

A driver, a GPU or a pynvml may lack any of them. `Gpu` then gives None and keeps the reason; NoGpu
is raised only if the GPU cannot be asked at all.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

MIB = 2**20
FIGURES = ("utilization", "sm_utilization", "nvjpg_utilization", "memory_mib", "energy_j")
_NVJPG_ENGINES = 8  # NVML has figures of at most so many, by GPM

# NVML is a part of the driver's capability "utility". DALI's decoder asks it for JPEG engines, and
# which CPUs are near to the GPU.
WITH_UTILITY = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
Answer = TypeVar("Answer")


class Gpu:
    """One GPU. A figure that it cannot give is None, and `missing` says why; errors of NVML never
    end a measurement.

    Args:
        uuid: as NVML writes it, "GPU-…".

    Attributes:
        missing: the reason for each missing figure, by its name.

    Raises:
        NoGpu: there is no NVML, or no such GPU.
    """

    def __init__(self, uuid: str):
        self.missing: dict[str, str] = {}
        self._given_up: set[str] = set()
        self._handle = _ask(lambda: _handle(uuid))
        self._gpm = self._read("sm_utilization", lambda: _Gpm(self._handle))

    def sample(self) -> dict[str, float | None]:
        """Takes all `FIGURES`: shares of about the time since the last sample, 0 to 1; MiB used on
        the whole GPU; joules since the driver was loaded.

        utilization: some kernel ran. sm_utilization: the mean over all multiprocessors, on Hopper
        and later. nvjpg_utilization: the JPEG engines.
        """
        utilization = self._read(
            "utilization", lambda: pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu / 100
        )
        jpg = self._read(
            "nvjpg_utilization", lambda: pynvml.nvmlDeviceGetJpgUtilization(self._handle)[0] / 100
        )

        # where GPM gives a figure, it goes before the older one
        return {
            "utilization": utilization,
            "nvjpg_utilization": jpg,
            "memory_mib": self._read(
                "memory_mib", lambda: pynvml.nvmlDeviceGetMemoryInfo(self._handle).used / MIB
            ),
            "energy_j": self._read(
                "energy_j", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3
            ),
            "sm_utilization": None,
        } | self._by_gpm()

    def memory_of(self, pid: int) -> int | None:
        """How many bytes a process holds on this GPU; None if the driver does not know the process
        by this number, or does not say.
        """
        processes = _ask(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        return next((process.usedGpuMemory for process in processes if process.pid == pid), None)

    def _by_gpm(self) -> dict[str, float]:
        values: dict[str, float] | None = (
            self._read("sm_utilization", self._gpm.sample) if self._gpm else None
        )
        if values is None:
            return {}

        # no error, and asked for again: an interval may have been too short
        if "sm_utilization" not in values:
            self.missing["sm_utilization"] = (
                "NVML: this GPU's performance monitoring (GPM) gave no value"
            )
        return values

    def _read(self, figure: str, read: Callable[[], Any]) -> Any:
        """Returns what `read` returns; None from the first time that it fails, and ever after."""
        if figure in self._given_up:
            return None
        try:
            return _ask(read)
        except NoGpu as error:
            self.missing[figure] = str(error)
            self._given_up.add(figure)
            return None


class NoGpu(Exception):
    """NVML or the GPU is not available; the text says why."""


def driver() -> tuple[str, tuple[int, int]]:
    """Returns the driver's version, and the newest CUDA (major, minor) that it knows; raises NoGpu
    if there is no driver, or if it knows no GPU.
    """

    def ask() -> tuple[str, tuple[int, int]]:
        pynvml.nvmlInit()
        if not pynvml.nvmlDeviceGetCount():
            raise NoGpu("NVML: the driver knows no GPU")
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()  # 12040 is 12.4
        return str(pynvml.nvmlSystemGetDriverVersion()), (cuda // 1000, cuda % 1000 // 10)

    return _ask(ask)


def _handle(uuid: str) -> Any:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def _ask(read: Callable[[], Answer]) -> Answer:
    """Returns NVML's answer. Any error becomes NoGpu, also one of ctypes, or of a pynvml or driver
    that lacks a function.
    """
    try:
        return read()
    except NoGpu:
        raise
    except pynvml.NVMLError as error:
        raise NoGpu(f"NVML: {error}") from None
    except Exception as error:
        raise NoGpu(f"NVML: {type(error).__name__}: {error}") from None


class _Gpm:
    """GPU performance monitoring: averages over the time between two samples. Hopper and later."""

    def __init__(self, handle: Any):
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise NoGpu("this GPU has no performance monitoring (GPM); Hopper and later have")
        self._handle = handle
        self._before, self._now = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(handle, self._now)

    def sample(self) -> dict[str, float]:
        # a sample is written into the memory of the one before the last
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

        # metrics have errors of their own, as those of engines that this GPU does not have
        answers = ask.metrics[: len(wanted)]
        sm, *engines = [
            answer.value / 100 if answer.nvmlReturn == pynvml.NVML_SUCCESS else None
            for answer in answers
        ]
        there = [engine for engine in engines if engine is not None]
        values = {
            "sm_utilization": sm,
            "nvjpg_utilization": sum(there) / len(there) if there else None,
        }
        return {figure: value for figure, value in values.items() if value is not None}
