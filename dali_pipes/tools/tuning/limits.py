"""Limits on a setting's resources, and how running out of memory is distinguished from other failures."""

import re
from typing import Any, cast

from dali_pipes.errors import ConfigError
from dali_pipes.measure.results import ArmFigures
from dali_pipes.measure.worker_process import ArmError
from dali_pipes.tools.tuning.config import TuneConfig

# PyTorch and CUDA; DALI's allocators and nvJPEG; C++, Python and the kernel; a worker that was killed, or died of a full /dev/shm;
# a process that ended by SIGKILL, as the kernel's out-of-memory killer sends it, or by SIGBUS.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|MemoryAllocation"
    r"|Can't allocate|Could not allocate|allocation failed|ALLOCATOR_FAILURE"
    r"|bad_alloc|MemoryError|Cannot allocate memory|unable to allocate"
    r"|killed by signal: (Killed|Bus error)|shared memory|/torch_.*No space left"
    r"|ended with SIG(KILL|BUS)\b",
    re.IGNORECASE,
)

_LIMITS = {  # limit: its figure, unit and format
    "max_cpus": ("cpus", "cores", ".2f"),
    "max_cpu_s_per_1000_images": ("cpu_s_per_1000_images", "CPU-s per 1,000 images", ".2f"),
    "max_memory_mib": ("peak_pss_mib", "MiB of host memory", ",.0f"),
    "max_gpu_memory_mib": ("gpu_memory_mib", "MiB of GPU memory", ",.0f"),
}


def ran_out_of_memory(error: ArmError) -> bool:
    return bool(_OUT_OF_MEMORY.search(f"{error}\n{error.wrote}"))


def limits(config: TuneConfig) -> dict[str, float | None]:
    return {limit: getattr(config, limit) for limit in _LIMITS}


def over_limit(config: TuneConfig, figures: ArmFigures) -> str | None:
    """Why a setting with these figures is discarded; None: it is within the limits.

    Raises:
        ConfigError: a limit is given for a figure that cannot be measured here.
    """
    for limit, (figure, unit, form) in _LIMITS.items():
        most, value = getattr(config, limit), cast(dict[str, Any], figures)[figure]
        if most is not None and value is None:
            raise ConfigError(f"{limit}={most:g} cannot be kept: {unit} cannot be measured here")
        if most is not None and value > most:
            return f"{value:{form}} {unit}, more than {limit}={most:g}"
    return None
