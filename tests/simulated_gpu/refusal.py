"""Where the simulation may run: where there is no GPU, and with the versions whose libraries it is
known to patch rightly.
"""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REAL = ("/dev/nvidia0", "/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
# Each set of versions that the tests have run on, by the lock in requirements/ that has it. A set
# has one CUDA: the structures of the runtime differ between two, and the simulated one has the
# layout of the headers that it is compiled with.
KNOWN: dict[str, dict[str, str]] = {
    "dev": {
        "torch": "2.10.",
        "nvidia-dali-cuda120": "2.2.",
        "nvidia-nvimgcodec-cu12": "0.8.",
        "cupy-cuda12x": "14.",
    },
    "dev-dali24": {
        "torch": "2.10.",
        "nvidia-dali-cuda120": "2.4.",
        "nvidia-nvimgcodec-cu12": "0.9.",
        "cupy-cuda12x": "14.",
    },
    "dev-cu13": {
        "torch": "2.11.",
        "nvidia-dali-cuda130": "2.2.",
        "nvidia-nvimgcodec-cu13": "0.8.",
        "cupy-cuda13x": "14.",
    },
}


class Refused(Exception):
    """Why the simulated GPU does not start here."""


def check() -> None:
    """Raises Refused where there is a GPU, or versions of the libraries that nobody has tried."""
    for path in REAL:
        if Path(path).exists():
            raise Refused(
                f"the simulated GPU does not start: this machine has a GPU ({path}); run the "
                "tests on it as they are"
            )
    check_versions(installed())


def installed() -> dict[str, str]:
    """{package: version} of those whose versions matter, as far as they are installed."""
    names = dict.fromkeys(name for known in KNOWN.values() for name in known)
    return {name: found for name in names if (found := _version(name))}


def check_versions(versions: dict[str, str]) -> None:
    """Raises Refused if no known set has all of these versions."""
    if any(_holds(known, versions) for known in KNOWN.values()):
        return
    sets = "; ".join(
        f"{_listed({name: f'{each}*' for name, each in known.items()})} ({lock}.txt)"
        for lock, known in KNOWN.items()
    )
    raise Refused(
        f"the simulated GPU does not know {_listed(versions)} together, but: {sets}. Try them, "
        "and add them to KNOWN in tests/simulated_gpu/refusal.py"
    )


def _holds(known: dict[str, str], versions: dict[str, str]) -> bool:
    return all(name in known and found.startswith(known[name]) for name, found in versions.items())


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {each}" for name, each in versions.items())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
