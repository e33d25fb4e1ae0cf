"""The provenance of a result: machine, versions, data, and the code that was run.

`refuse_simulated_gpu` keeps figures of a simulated GPU from becoming a result.
"""

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

import psutil

from dali_pipes.errors import ConfigError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.cuda import gpu_name

DALI = ["nvidia-dali-cuda120", "nvidia-dali-cuda130"]
# the end of the name of a GPU that tests/simulated_gpu simulates: none of its figures mean anything
SIMULATED = "(simulated)"
FIGURES_ANYWAY = "SIMULATED_GPU_FIGURES"  # an environment variable; 1: measure there nevertheless
PACKAGES = ["dali_pipes", *DALI, "torch", "torchvision", "tensorflow-cpu", "numpy", "pillow"]


class Provenance(TypedDict):
    date: str
    hardware: dict[str, Any]
    versions: dict[str, str | None]
    data: dict[str, Any]
    commit: str | None
    overrides: list[str]


def provenance(data: dict[str, Any], overrides: list[str]) -> Provenance:
    """Returns the provenance of this run. `data` describes the images, as `Manifest.describe` does;
    `overrides` is what was given on the command line.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hardware": {
            "cpu": _cpu_model(),
            "cpus_used": available_cpus(),
            "cpus_total": os.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "gpu": gpu_name(),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
        "data": data,
        "commit": _commit(),
        "overrides": overrides,
    }


def gpu_is_simulated() -> bool:
    return (gpu_name() or "").endswith(SIMULATED)


def refuse_simulated_gpu() -> None:
    """Raises a ConfigError if the GPU is simulated, so that nobody publishes its figures.

    The variable FIGURES_ANYWAY lets scripts/gpu_check.sh through, to test that its parts run. Its
    report then says of no goal that it was measured.
    """
    if gpu_is_simulated() and os.environ.get(FIGURES_ANYWAY) != "1":
        raise ConfigError(
            f"{gpu_name()}: the GPU is simulated for tests, and runs no kernels, so its "
            "figures mean nothing; "
            "measure on a real one, or leave the GPU out with CUDA_VISIBLE_DEVICES="
        )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _commit() -> str | None:
    """The commit of the checkout, with "+" if anything in it was changed since; outside of a
    checkout, the commit that a container was built from.
    """
    try:
        # fails where the package is only installed inside another repository, as in its .venv
        _git("ls-files", "--error-unmatch", Path(__file__).name)
        head, status = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("DALI_PIPES_COMMIT")
    return head + ("+" if status else "")


def _git(*arguments: str) -> str:
    """Returns what git says in the package's folder."""
    done = subprocess.run(
        ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
