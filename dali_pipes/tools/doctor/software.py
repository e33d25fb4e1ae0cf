"""Checks the installed versions, whether they fit together, and whether nvImageCodec and CuPy work.

nvImageCodec and CuPy are checked in a child process and imported only there, since a broken library
may crash it.
"""

import platform
import re
import sys
from importlib.metadata import distributions

import numpy as np
import torch

from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.dali.decoding import choose
from dali_pipes.system.cuda import install_cuda
from dali_pipes.tools.doctor.images import difference, judge, make_jpeg
from dali_pipes.tools.doctor.report import SETUP, Finding, failed, ok, warning

TESTED = ((3, 11), (3, 14))  # the oldest and the newest Python
KERNEL = 'extern "C" __global__ void add_one(float* values) { values[threadIdx.x] += 1; }'
_RELEVANT = re.compile(
    r"dali_pipes|torch|torchvision|numpy|pillow|nvidia-(dali|nvimgcodec|nvjpeg|ml-py)\S*|cupy\S*|cuda-toolkit"
)
_CUDA_IN_NAME = re.compile(
    r"(?:nvidia-dali(?:-nightly)?-cuda|cupy-cuda|nvidia-nvimgcodec-cu)(\d+)x?"
)
_OF_NVIDIA = ("nvidia-dali", "nvidia-nvimgcodec")
# beginnings of names: distributions whose files are in the same place, or that need each other
_SHARING_FILES = (_OF_NVIDIA, ("cupy",))


def python_version() -> Finding:
    running, (oldest, newest) = sys.version_info[:2], TESTED
    text = f"Python {platform.python_version()}"
    between = f"{oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"

    if running < oldest:
        return failed(
            f"{text}; the package needs {between}",
            f"install Python {newest[0]}.{newest[1]}, then {SETUP}",
        )
    if running > newest:
        return warning(
            f"{text}; tested are {between}",
            "if a wheel is missing or a test fails, take one of those",
        )

    return ok(text)


def pytorch() -> Finding:
    torch_version = f"PyTorch {torch.__version__}"
    if torch.version.cuda is None:
        return failed(
            f"{torch_version}, a build without CUDA", f"install a build with CUDA; {SETUP}"
        )
    return ok(f"{torch_version}, built for CUDA {torch.version.cuda}")


def simulated_gpu() -> Finding:
    return failed(
        f"{torch.cuda.get_device_name()}: no kernel runs here",
        "ask again without tests/simulated_gpu, on a real GPU",
    )


def one_cuda() -> Finding:
    """Checks that the packages that need one another are for one version of CUDA.

    CuPy links its CUDA runtime statically and compiles kernels with the NVRTC that PyTorch brings
    (libnvrtc.so.13), so it must be of PyTorch's major version. DALI and nvImageCodec link theirs
    statically too, and load nvJPEG, which PyTorch does not, under a name with the major version
    (libnvjpeg.so.12). So DALI of CUDA 12 may run beside PyTorch of CUDA 13: they share the driver
    and NVML only, which take programs of earlier versions (docs/install.md).
    """
    majors = {name: major for name in installed() if (major := cuda_major(name)) is not None}
    if not majors and not torch.version.cuda:
        return ok("no CUDA build is installed")

    for sharing in _SHARING_FILES:
        theirs = {name: major for name, major in sorted(majors.items()) if name.startswith(sharing)}
        if len(set(theirs.values())) > 1:
            names = ", ".join(f"{name} {major}" for name, major in theirs.items())
            return failed(
                f"they are for different versions of CUDA, and need one of them: {names}",
                f"uninstall them all, then install one version: {install_cuda()}",
            )
    return _name_majors(majors)


def _name_majors(majors: dict[str, int]) -> Finding:
    pytorch = int(torch.version.cuda.split(".")[0]) if torch.version.cuda else None
    cupy = next((major for name, major in majors.items() if name.startswith("cupy")), None)
    dali = next((major for name, major in majors.items() if name.startswith(_OF_NVIDIA)), None)
    if cupy and pytorch and cupy != pytorch:
        return warning(
            f"CuPy of CUDA {cupy} beside PyTorch of CUDA {pytorch}, whose compiler of kernels CuPy "
            "takes; nobody has tried this on a GPU",
            f"install the CuPy of PyTorch's CUDA: {install_cuda()}",
        )
    return ok(_say_majors(majors | ({"torch": pytorch} if pytorch else {}), dali, pytorch))


def _say_majors(majors: dict[str, int], dali: int | None, pytorch: int | None) -> str:
    by_major = {
        major: [name for name in sorted(majors) if majors[name] == major]
        for major in sorted(set(majors.values()))
    }
    text = "; ".join(f"CUDA {major}: {', '.join(names)}" for major, names in by_major.items())
    if dali and pytorch and dali != pytorch:
        return f"{text}. They share the driver only, which must know CUDA {max(dali, pytorch)}"
    return text


def cuda_major(distribution: str) -> int | None:
    """The major CUDA version in a distribution's name; None if there is none.

    It is 12 for nvidia-dali-cuda120, cupy-cuda12x and nvidia-nvimgcodec-cu12.
    """
    match = _CUDA_IN_NAME.fullmatch(distribution)
    if not match:
        return None
    # DALI's names contain the minor version too, as in cuda120
    number = int(match[1])
    return number // 10 if number >= 100 else number


def installed() -> dict[str, str]:
    """The versions of Python and of the distributions that loading and training depend on."""
    names = {
        (distribution.metadata["Name"] or "").lower(): distribution.version
        for distribution in distributions()
    }
    relevant = {
        name: version for name, version in sorted(names.items()) if _RELEVANT.fullmatch(name)
    }
    return {"python": platform.python_version(), **relevant}


def nvimagecodec() -> Finding:
    """Reads the header of a JPEG and, with a GPU, decodes it.

    Reports the version, and what loader.decode=auto chooses with it.
    """
    from nvidia import nvimgcodec

    encoded, expected = make_jpeg()

    version = f"nvImageCodec {nvimgcodec.__version__}"
    stream = nvimgcodec.CodeStream(encoded)
    if (stream.height, stream.width) != expected.shape[:2]:
        return failed(
            (
                f"{version} reads {stream.height} × {stream.width} from the header of a JPEG of "
                f"{expected.shape[:2]}"
            ),
            SETUP,
        )

    auto = f"decode=auto takes {choose(DaliConfig(), on_gpu=True)}"
    if not torch.cuda.is_available():
        return ok(f"{version} reads headers; it decodes on a GPU only; {auto}")

    # with the same chroma upsampling as Pillow, so that the pixels may be compared
    image = nvimgcodec.Decoder(options=":fancy_upsampling=1").decode(stream)
    if image is None:
        return failed(f"{version} cannot decode a JPEG", SETUP)
    return judge(
        f"{version} decoded a JPEG on the GPU; {auto}",
        difference(np.asarray(image.cpu()), expected),
    )


def cupy_kernel() -> Finding:
    """Compiles a raw kernel and runs it on the GPU; without a GPU, only compiles it to PTX.

    Raises what CuPy raises if the kernel does not compile.
    """
    import cupy

    nvrtc = cupy.cuda.nvrtc

    versions = "CuPy {}, NVRTC {}.{}".format(cupy.__version__, *nvrtc.getVersion())
    if not torch.cuda.is_available():
        # there is no GPU to ask for its architecture; NVRTC of CUDA 12 and of 13 knows this one
        program = nvrtc.createProgram(KERNEL, "add_one.cu", [], [])
        nvrtc.compileProgram(program, ["--gpu-architecture=compute_80"])
        return ok(
            f"{versions} compiles a kernel to {len(nvrtc.getPTX(program))} bytes of PTX; there "
            "is no GPU to run it on"
        )

    values = cupy.zeros(32, dtype=cupy.float32)
    cupy.RawKernel(KERNEL, "add_one")((1,), (32,), (values,))
    if not (values == 1).all():
        return failed(f"{versions}: a kernel ran and gave wrong values", SETUP)
    return ok(f"{versions}: a kernel was compiled and ran")
