"""Where the simulation may run: where there is no GPU, and with the versions whose libraries it is
known to patch rightly.
"""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REAL = ("/dev/nvidia0", "/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
# Those that the tests have run on; of a package without any, none.
KNOWN: dict[str, tuple[str, ...]] = {
    "torch": ("2.10.",),
    "nvidia-dali-cuda120": ("2.2.",),
    "nvidia-dali-cuda130": (),
    "nvidia-nvimgcodec-cu12": ("0.8.",),
    "nvidia-nvimgcodec-cu13": (),
    "cupy-cuda12x": ("14.",),
    "cupy-cuda13x": (),
}


class Refused(Exception):
    """Why the simulated GPU does not start here."""


def check() -> None:
    """Raises Refused where there is a GPU, or a library of a version that nobody has tried."""
    for path in REAL:
        if Path(path).exists():
            raise Refused(
                f"the simulated GPU does not start: this machine has a GPU ({path}); run the "
                "tests on it as they are"
            )
    for package, known in KNOWN.items():
        installed = _version(package)
        if installed and not installed.startswith(known):
            supported = (
                f"only {' or '.join(f'{each}*' for each in known)}" if known else "no version of it"
            )
            raise Refused(
                f"the simulated GPU does not know {package} {installed}, {supported}; "
                "try it, and add the version to KNOWN in tests/simulated_gpu/refusal.py"
            )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
