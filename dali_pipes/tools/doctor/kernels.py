"""CuPy, tested with a kernel. Runs in a child process, since a broken library may crash."""

import cupy
import torch

from dali_pipes.tools.doctor.finding import Finding, failed, ok
from dali_pipes.tools.doctor.software import SETUP

SOURCE = 'extern "C" __global__ void add_one(float* values) { values[threadIdx.x] += 1; }'


def cupy_kernel() -> Finding:
    """A raw kernel compiled and run on the GPU; without one, compiled to PTX, which needs none."""
    major, minor = cupy.cuda.nvrtc.getVersion()
    versions = f"CuPy {cupy.__version__}, NVRTC {major}.{minor}"
    if not torch.cuda.is_available():
        return ok(f"{versions} compiles a kernel to {compile_to_ptx()}; there is no GPU to run it on")
    values = cupy.zeros(32, dtype=cupy.float32)
    cupy.RawKernel(SOURCE, "add_one")((1,), (32,), (values,))
    if not (values == 1).all():
        return failed(f"{versions}: a kernel ran and gave wrong values", SETUP)
    return ok(f"{versions}: a kernel was compiled and ran")


def compile_to_ptx() -> str:
    """The size of the PTX.

    Raises:
        cupy.cuda.nvrtc.NVRTCError: it does not compile.
    """
    program = cupy.cuda.nvrtc.createProgram(SOURCE, "add_one.cu", [], [])
    cupy.cuda.nvrtc.compileProgram(program, ["--gpu-architecture=compute_80"])
    ptx = cupy.cuda.nvrtc.getPTX(program)
    return f"{len(ptx)} bytes of PTX"
