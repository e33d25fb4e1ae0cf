"""The CUDA kernels of mixing without a GPU: compiled by NVRTC, and compiled for the CPU by g++ and
run there against PyTorch.
"""

import ctypes
import importlib.util
import inspect
import itertools
import platform
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from simulated_gpu.mixing_kernels import BFLOAT, CUPY_OPTIONS, HALF, HOST

from dali_pipes.backends.pixels.tensors import MEMORY_FORMATS
from dali_pipes.loader import mixing_kernels

TYPES = {
    torch.float32: "float",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
    torch.uint8: "unsigned char",
}
INSTANCES = [
    f"{kernel}<{name}, {at_once}>"
    for kernel in ("mixup", "cutmix")
    for dtype, name in TYPES.items()
    for at_once in (1, 16 // dtype.itemsize)
]
MIXUP = """
extern "C" void {symbol}(int x, int y, int threads, const {t}* a, {t}* b, int count, int size,
                         float own, float other) {{
    run({name}, x, y, threads, a, b, count, size, own, other);
}}
"""
CUTMIX = """
extern "C" void {symbol}(int x, int y, int threads, const {t}* a, {t}* b, int count, int size,
                         int step, int height, int width, int left, int top, int right,
                         int bottom) {{
    run({name}, x, y, threads, a, b, count, size, step, height, width, left, top, right, bottom);
}}
"""


@pytest.fixture(scope="module")
def headers():
    """CUDA's, of the wheel that PyTorch and CuPy depend on."""
    found = (
        importlib.util.find_spec("nvidia.cuda_runtime")
        if importlib.util.find_spec("nvidia")
        else None
    )
    folders = [Path(each, "include") for each in found.submodule_search_locations] if found else []
    if not any((folder / "cuda_bf16.h").exists() for folder in folders):
        pytest.skip("CUDA's headers are not in the wheel nvidia-cuda-runtime here")
    return str(folders[0])


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvrtc_compiles_every_instance(headers, architecture):
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(mixing_kernels.KERNELS.read_text(), "mixing.cu", [], [])
    for name in INSTANCES:
        nvrtc.addNameExpression(program, name)
    nvrtc.compileProgram(
        program, [f"--gpu-architecture={architecture}", "-std=c++17", f"-I{headers}", *CUPY_OPTIONS]
    )
    assert nvrtc.getProgramLog(program) == "" and len(nvrtc.getCUBIN(program)) > 10_000
    assert len({nvrtc.getLoweredName(program, name) for name in INSTANCES}) == len(INSTANCES)


def test_these_are_the_options_of_cupy():
    from cupy.cuda import compiler

    assert all(
        f"options += ('{option}',)" in inspect.getsource(compiler) for option in CUPY_OPTIONS
    )


def symbol(name):
    return "".join(letter if letter.isalnum() else "_" for letter in name)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The kernels as functions of the CPU."""
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("no g++ here")
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "cuda_fp16.h").write_text(HALF)
    (folder / "cuda_bf16.h").write_text(BFLOAT)
    wrappers = [
        (MIXUP if name.startswith("mixup") else CUTMIX).format(
            symbol=symbol(name), name=name, t=re.search("<(.*),", name)[1]
        )
        for name in INSTANCES
    ]
    (folder / "host.cpp").write_text(HOST + "".join(wrappers))
    half = subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only", "-xc++", str(folder / "cuda_fp16.h")],
        capture_output=True,
    )
    if half.returncode:
        pytest.skip("this g++ has no _Float16; 12 has")
    options = [
        "-std=c++17",
        "-O2",
        "-ffp-contract=off",
        "-shared",
        "-fPIC",
        f"-I{folder}",
        f"-I{mixing_kernels.KERNELS.parent}",
    ]
    subprocess.run(
        [compiler, *options, str(folder / "host.cpp"), "-o", str(folder / "host.so")], check=True
    )
    return ctypes.CDLL(str(folder / "host.so"))


@pytest.fixture
def on_the_cpu(compiled, monkeypatch):
    """`_launch` as it is, with CuPy's part done by the CPU; the names of the instances that ran."""
    ran = []
    c_types = {np.dtype(np.int32): ctypes.c_int, np.dtype(np.float32): ctypes.c_float}

    def instance(name, device):
        def launch(blocks, threads, arguments):
            ran.append(name)
            numbers = [c_types[np.dtype(type(each))](each.item()) for each in arguments[2:]]
            getattr(compiled, symbol(name))(
                *blocks, *threads, *map(ctypes.c_void_p, map(int, arguments[:2])), *numbers
            )

        return launch

    monkeypatch.setattr(mixing_kernels, "_compiled", instance)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    return ran


def images_of(count, side, dtype, memory_format):
    pixels = torch.randint(
        0,
        256,
        (count, 3, side, side + 4),
        generator=torch.Generator().manual_seed(side),
        dtype=torch.uint8,
    )
    images = pixels if dtype == torch.uint8 else (pixels.float() / 57 - 2).to(dtype)
    return images.contiguous(memory_format=memory_format)


BOXES = [(0, 0, 0, 0), (3, 1, 9, 8), (0, 0, 1000, 1000), (5, 0, 6, 5)]
FORMS = [*itertools.product(TYPES, MEMORY_FORMATS.values(), [4, 9, 32], [1, 2, 7, 8, 9, 19])]


def test_mixup_is_that_of_pytorch(on_the_cpu):
    for dtype, memory_format, side, count in FORMS:
        images = images_of(count, side, dtype, memory_format)
        for own in (0.0, 0.3, 0.123456789, 1.0):
            made = mixing_kernels._launch("mixup", images, np.float32(own), np.float32(1.0 - own))
            assert torch.equal(made, mixing_kernels.blend_with_previous(images, own)), (
                dtype,
                memory_format,
                side,
                count,
                own,
            )
            assert made.stride() == images.stride()
    assert set(on_the_cpu) == {name for name in INSTANCES if name.startswith("mixup")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_smallest_numbers_are_those_of_pytorch_but_for_denormal_ones_of_float32(
    on_the_cpu, dtype
):
    """Those, below 1.2e-38, count as 0. Denormal numbers of float16 are none of float32, in which
    it is computed.
    """
    if platform.machine() != "x86_64":
        pytest.skip("the flag of this processor is not known here")
    tiny = torch.finfo(dtype).tiny
    images = (images_of(9, 9, torch.uint8, torch.contiguous_format).double() * tiny / 64).to(dtype)
    made = mixing_kernels._launch("mixup", images, np.float32(0.3), np.float32(1.0 - 0.3))
    expected, floor = (
        mixing_kernels.blend_with_previous(images, 0.3),
        torch.finfo(torch.float32).tiny,
    )
    if dtype == torch.float16:
        assert torch.equal(made, expected) and (images.abs() < tiny).any()
    else:
        assert (made.double() - expected.double()).abs().max() <= 3 * floor and not torch.equal(
            made, expected
        )
    normal = images_of(9, 9, dtype, torch.contiguous_format)
    assert torch.equal(
        mixing_kernels._launch("mixup", normal, np.float32(0.3), np.float32(0.7)),
        mixing_kernels.blend_with_previous(normal, 0.3),
    )


def test_cutmix_is_that_of_pytorch(on_the_cpu, monkeypatch):
    for dtype, memory_format, side, count in FORMS:
        images = images_of(count, side, dtype, memory_format)
        for box in BOXES:
            box = tuple(min(edge, side + 4 - 4 * (at % 2)) for at, edge in enumerate(box))
            expected = mixing_kernels.paste_previous(images, box)
            with monkeypatch.context() as patched:
                patched.setattr(torch.Tensor, "is_cuda", True)
                made = mixing_kernels.paste_previous(images, box)
            assert torch.equal(made, expected), (dtype, memory_format, side, count, box)
    assert set(on_the_cpu) == {name for name in INSTANCES if name.startswith("cutmix")}


def test_parts_of_a_batch_and_odd_strides(on_the_cpu):
    """A slice that begins where no 16 bytes do, and images that do not lie one after the other."""
    whole = images_of(9, 9, torch.float16, torch.contiguous_format)
    for images in (whole[1:], whole[::2], whole.transpose(2, 3), whole[:, :, 1:]):
        made = mixing_kernels._launch("mixup", images, np.float32(0.25), np.float32(0.75))
        assert torch.equal(made, mixing_kernels.blend_with_previous(images, 0.25))
