"""The installed versions, and whether they can be loaded into one process."""

import platform
import re
import sys
from importlib.metadata import distributions

import torch

from dali_pipes.tools.doctor.finding import Finding, failed, ok, warning

TESTED = ((3, 11), (3, 13))  # the oldest and the newest Python
SETUP = "bash scripts/setup.sh installs versions that fit"
_RELEVANT = re.compile(r"dali_pipes|torch|torchvision|numpy|pillow|nvidia-(dali|nvimgcodec|nvjpeg|ml-py)\S*|cupy\S*|cuda-toolkit")
_CUDA_IN_NAME = re.compile(r"(?:nvidia-dali(?:-nightly)?-cuda|cupy-cuda|nvidia-nvimgcodec-cu)(\d+)x?")


def python_version() -> Finding:
    running, (oldest, newest) = sys.version_info[:2], TESTED
    text = f"Python {platform.python_version()}"
    between = f"{oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    if running < oldest:
        return failed(f"{text}; the package needs {between}", f"install Python {newest[0]}.{newest[1]}, then {SETUP}")
    if running > newest:
        return warning(f"{text}; tested are {between}", "if a wheel is missing or a test fails, take one of those")
    return ok(text)


def pytorch() -> Finding:
    found = f"PyTorch {torch.__version__}"
    if torch.version.cuda is None:
        return failed(f"{found}, a build without CUDA", f"install a build with CUDA; {SETUP}")
    return ok(f"{found}, built for CUDA {torch.version.cuda}")


def one_cuda() -> Finding:
    """DALI, nvImageCodec, CuPy and PyTorch load CUDA libraries into one process: their major versions must agree."""
    majors = {name: major for name in installed() if (major := cuda_major(name)) is not None}
    if torch.version.cuda:
        majors["torch"] = int(torch.version.cuda.split(".")[0])
    found = ", ".join(f"{name} {major}" for name, major in sorted(majors.items()))
    if len(set(majors.values())) > 1:
        return failed(f"several CUDA majors in one process: {found}", f"install builds for one of them; {SETUP}")
    return ok(f"CUDA {next(iter(majors.values()))}: {', '.join(sorted(majors))}" if majors else "no CUDA build is installed")


def cuda_major(distribution: str) -> int | None:
    """12 for nvidia-dali-cuda120, cupy-cuda12x or nvidia-nvimgcodec-cu12; None if the name has none."""
    match = _CUDA_IN_NAME.fullmatch(distribution)
    if not match:
        return None
    number = int(match[1])
    return number // 10 if number >= 100 else number


def installed() -> dict[str, str]:
    """Versions of Python and of what image loading and training on a GPU depend on, by distribution."""
    names = {(each.metadata["Name"] or "").lower(): each.version for each in distributions()}
    relevant = {name: version for name, version in sorted(names.items()) if _RELEVANT.fullmatch(name)}
    return {"python": platform.python_version(), **relevant}
