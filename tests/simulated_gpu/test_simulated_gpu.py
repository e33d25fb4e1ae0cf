"""The simulated GPU itself: where it starts, that what is not ordered goes wrong on it, and
failures on demand.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from simulated_gpu import refusal

ROOT = Path(__file__).parents[2]

# 20 batches are copied on one stream, and read on another.
COPIES = """
import torch
side, wrong = torch.cuda.Stream(), 0
for number in range(20):
    host = torch.full((1000,), number).pin_memory()
    with torch.cuda.stream(side):
        there = host.to("cuda", non_blocking=True)
    {wait}
    wrong += int((there.clone().cpu() != number).any())
    torch.cuda.synchronize()
print(wrong)
"""


def run(program, *arguments, **environment):
    """Its output on the simulated GPU, and its errors."""
    command = [
        sys.executable,
        "-m",
        "tests.simulated_gpu",
        sys.executable,
        "-c",
        program,
        *arguments,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True
    )
    return done.stdout.strip(), done.stderr


@pytest.fixture(autouse=True)
def no_real_gpu():
    if any(Path(path).exists() for path in refusal.REAL):
        pytest.skip("there is a GPU here")


def test_it_does_not_start_beside_a_real_one(monkeypatch, tmp_path):
    monkeypatch.setattr(refusal, "REAL", (str(tmp_path),))
    with pytest.raises(refusal.Refused, match="this machine has a GPU"):
        refusal.check()


@pytest.mark.parametrize("lock", refusal.KNOWN)
def test_it_knows_what_is_locked(lock, monkeypatch):
    monkeypatch.setattr(refusal, "_version", locked(lock).get)
    refusal.check()


def test_it_names_versions_that_nobody_tried_together(monkeypatch):
    newer = locked("dev") | {"nvidia-dali-cuda120": "2.5.0"}
    of_two_cudas = locked("dev-cu13") | locked("dev")

    for versions in (newer, of_two_cudas, {"torch": "2.12.0"}):
        monkeypatch.setattr(refusal, "_version", versions.get)
        with pytest.raises(refusal.Refused, match="together, but: torch 2") as refused:
            refusal.check()
        names = [name for name in versions if name in refusal.installed()]
        assert names and all(f"{name} {versions[name]}" in str(refused.value) for name in names)


def locked(lock):
    """{package: version} of a lock."""
    text = (ROOT / f"requirements/{lock}.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


@pytest.mark.slow
def test_its_name_says_so_and_there_are_two():
    program = (
        "import torch; print([torch.cuda.get_device_name(each) for each in "
        "range(torch.cuda.device_count())])"
    )
    name = "'NVIDIA H100 80GB HBM3 (simulated)'"
    assert run(program)[0] == f"[{name}, {name}]"
    assert run(program, CUDA_VISIBLE_DEVICES="1")[0] == f"[{name}]"
    assert run(program, CUDA_VISIBLE_DEVICES="")[0] == "[]"


@pytest.mark.slow
def test_a_wait_that_is_missing_shows():
    assert int(run(COPIES.format(wait="pass"))[0]) > 0
    assert run(COPIES.format(wait="torch.cuda.current_stream().wait_stream(side)"))[0] == "0"
    assert run(COPIES.format(wait="pass"), SIMULATED_GPU_EAGER="1")[0] == "0"


@pytest.mark.slow
def test_memory_that_was_given_back_is_poisoned():
    program = """
import ctypes, torch
tensor = torch.zeros(2**22, dtype=torch.uint8, device="cuda")
place = tensor.data_ptr()
del tensor
torch.cuda.empty_cache()
print(set((ctypes.c_uint8 * 2**10).from_address(place)))
"""
    assert run(program)[0] == "{219}"


# 20 tensors each: read on a stream that is late, and dropped as soon as that is queued; and written
# on a stream that waits for nobody, in memory that a late copy has yet to read.
LIFETIMES = """
import torch
side, this = torch.cuda.Stream(), torch.cuda.current_stream()

def read_late(record):
    wrong = 0
    for number in range(20):
        tensor = torch.full((1000,), number, device="cuda")
        side.wait_stream(this)
        with torch.cuda.stream(side):
            torch.cuda._sleep(1000)
            copy = tensor.clone()
        if record:
            tensor.record_stream(side)
        del tensor
        torch.cuda.synchronize()
        wrong += int((copy != number).any())
    return wrong

def written_early(wait):
    wrong = 0
    for number in range(20):
        tensor = torch.full((1000,), number, device="cuda")
        torch.cuda.synchronize()
        torch.cuda._sleep(1000)
        copy = tensor.clone()
        del tensor
        new = torch.empty(1000, dtype=torch.int64, device="cuda")
        if wait:
            side.wait_stream(this)
        with torch.cuda.stream(side):
            new.fill_(-1)
        side.synchronize()
        wrong += int((copy != number).any())
    return wrong

print(read_late(False), read_late(True), written_early(False), written_early(True))
"""


@pytest.mark.slow
@pytest.mark.parametrize("poisoned", [False, True])
def test_memory_that_is_given_back_is_used_again(poisoned):
    """PyTorch's own allocator does not show a missing `record_stream` unless somebody writes into
    the memory; where it is poisoned it shows.
    """
    out, errors = run(LIFETIMES, SIMULATED_GPU_POISON=str(int(poisoned)))
    unrecorded, recorded, too_early, in_order = map(int, out.split())
    assert (unrecorded, recorded, in_order) == (20 if poisoned else 0, 0, 0), errors
    assert too_early > 0


@pytest.mark.slow
def test_where_memory_is_poisoned_pytorch_counts_it_as_ever():
    program = """
import torch
large = torch.empty(2**20, dtype=torch.uint8, device="cuda")
held = torch.cuda.memory_allocated()
del large
kept = torch.cuda.memory_reserved()
torch.cuda.empty_cache()
print(held, torch.cuda.memory_allocated(), kept, torch.cuda.memory_reserved())
try:
    torch.empty(2**27, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print(error)
"""
    options = {"SIMULATED_GPU_POISON": "1", "SIMULATED_GPU_FAIL": "memory_mib=100"}
    counts, error = run(program, **options)[0].splitlines()
    assert counts == f"{2**20} 0 {2**20} 0"
    assert error.startswith(f"CUDA out of memory. Tried to allocate {2**27} bytes")


@pytest.mark.slow
def test_memory_runs_out_when_asked():
    program = """
import torch
try:
    torch.empty(2**22, device="cuda"), torch.empty(2**25, device="cuda")
except torch.OutOfMemoryError as error:
    print(error)
"""
    assert "CUDA out of memory" in run(program, SIMULATED_GPU_FAIL="allocation=2")[0]
    assert (
        "GPU 0 has a total capacity of 100.00 MiB"
        in run(program, SIMULATED_GPU_FAIL="memory_mib=100")[0]
    )


# As it is, and as an import of Lightning has it: then PyTorch counts GPUs by NVML, and says that
# one is available.
@pytest.mark.slow
@pytest.mark.parametrize("by_nvml", ["0", "1"])
def test_a_driver_that_is_too_old_is_named(by_nvml):
    program = """
import dali_pipes as dp, tempfile, torch, warnings
from dali_pipes.errors import ConfigError
warnings.simplefilter("ignore")
from dali_pipes.data.demo import make_demo_set
from pathlib import Path
print("available:", torch.cuda.is_available())
with tempfile.TemporaryDirectory() as folder:
    demo = make_demo_set(Path(folder), train=5, val=5) / "train"
    manifest = dp.Manifest.scan(demo, progress=False)
    transform, torch_loader = dp.TrainTransform(), dp.TorchConfig(num_workers=0)
    for config, device in ((dp.DaliConfig(device="gpu"), "auto"), (torch_loader, "cuda:0")):
        try:
            dp.build_loader(manifest, config, transform=transform, batch_size=2, device=device)
        except ConfigError as error:
            print(error)
    options = {"transform": dp.TrainTransform(size=16), "batch_size": 2}
    for config in (dp.DaliConfig(), torch_loader):
        with dp.build_loader(manifest, config, **options) as loader:
            print(next(iter(loader)).images.device)
"""
    environment = {"SIMULATED_GPU_FAIL": "driver=11040", "PYTORCH_NVML_BASED_CUDA_CHECK": by_nvml}
    output, errors = run(program, **environment)
    reason = "PyTorch says: The NVIDIA driver on your system is too old (found version 11040)"
    instead = "use DaliConfig(device='cpu') or TorchConfig(), or check the driver (nvidia-smi)"
    assert output.splitlines() == [
        f"available: {by_nvml == '1'}",
        f"DaliConfig(device='gpu'), but PyTorch sees no GPU here; {instead}. {reason}",
        f"device=cuda:0, but PyTorch sees no GPU here; {instead}. {reason}",
        "cpu",
        "cpu",
    ], errors
    assert (
        (f"the loader works on the CPU, since PyTorch cannot use the GPU that is here; {reason}")
        in errors
    ) == (by_nvml == "1")


# Kernels, and launches of them.
LAUNCHES = """
import cupy, ctypes, numpy, torch
from pathlib import Path
from cupy.cuda import compiler, function
from dali_pipes.loader import mixing_kernels
START = 'extern "C" __global__ void '
ONE = START + "one(float *to) { to[threadIdx.x] = 1; }"
BOUNDED = START + "__launch_bounds__(256) bounded(float *to) { to[threadIdx.x] = 1; }"
SHARED = START + '''shared(float *to) {
    __shared__ float all[10240];
    all[threadIdx.x] = to[threadIdx.x];
    __syncthreads();
    to[threadIdx.x] = all[255 - threadIdx.x];
}'''
LARGE = START + '''large(float *to) {
    float all[200];
    for (int i = 0; i < 200; i++) all[i] = to[i * 1024 + threadIdx.x];
    for (int i = 0; i < 200; i++) all[i] *= all[(i * 7 + 1) % 200];
    for (int i = 0; i < 200; i++) to[i * 1024 + threadIdx.x] = all[i];
}'''

def launch(code, grid, block, shared=0, allowed=None):
    kernel = cupy.RawKernel(code, code.split("(float")[0].split()[-1])
    if allowed:
        kernel.max_dynamic_shared_size_bytes = allowed
    kernel(grid, block, (numpy.uintp(0),), shared_mem=shared)

def load(architecture, name):
    code, _ = compiler.compile_using_nvrtc(ONE, (), str(architecture))
    module = function.Module()
    module.load(code)
    module.get_function(name)

# A kernel that is linked into a library, as DALI's are.
LINKED = ctypes.c_char()
(path,) = {line.split()[-1] for line in Path("/proc/self/maps").open() if "/libcudart.so" in line}
runtime = ctypes.CDLL(path)
runtime.cudaGetErrorName.restype = ctypes.c_char_p

class Dim3(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]

def linked(grid, block, shared=0, allowed=None):
    kernel, none = ctypes.byref(LINKED), ctypes.c_void_p()
    runtime.cudaFuncSetAttribute(kernel, 8, allowed or 49152)
    size = ctypes.c_size_t(shared)
    error = runtime.cudaLaunchKernel(kernel, Dim3(*grid), Dim3(*block), none, size, none)
    return runtime.cudaGetErrorName(error).decode()

images = torch.zeros(4 * 64 + 1, device="cuda")

def mix(offset):
    with mixing_kernels.cupy_stream(images.device):
        pointer = numpy.uintp(images.data_ptr() + offset)
        numbers = numpy.int32(4), numpy.int32(64), numpy.float32(0.5), numpy.float32(0.5)
        mixing_kernels._compiled("mixup<float, 4>", 0)((1,), (64,), (pointer, pointer, *numbers))
    torch.cuda.synchronize()

def outcome(work):
    try:
        return str(work() or "ok")
    except Exception as error:
        return str(error).split(chr(10))[0]
"""
INVALID = "CUDA_ERROR_INVALID_VALUE: invalid argument"
RESOURCES = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch"
UNFIT = "cudaErrorInvalidConfiguration"
NO_CODE = "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution on the device"
# The grid, the block, shared memory with the kernel's own, the kernel's bounds and registers, the
# architecture, the name; and last what ends the device, as a real one: nothing works from then on.
OUTCOMES = {
    "launch(ONE, (65536, 65535, 65535), (32, 32))": "ok",
    "launch(ONE, (1,), (32,), 49152)": "ok",
    "launch(ONE, (1,), (32,), 232448, 232448)": "ok",
    "launch(BOUNDED, (1,), (256,))": "ok",
    "launch(SHARED, (1,), (256,), 8192)": "ok",
    "launch(LARGE, (1,), (128,))": "ok",
    "launch(ONE, (1,), (2048,))": INVALID,
    "launch(ONE, (1,), (1, 1, 65))": INVALID,
    "launch(ONE, (1,), (33, 32))": INVALID,
    "launch(ONE, (1, 65536), (32,))": INVALID,
    "launch(ONE, (1, 1, 65536), (32,))": INVALID,
    "launch(ONE, (1,), (32,), 49153)": INVALID,
    "launch(ONE, (1,), (32,), 232448, 232447)": INVALID,
    "launch(ONE, (1,), (32,), 0, 232449)": INVALID,
    "launch(BOUNDED, (1,), (512,))": RESOURCES,
    "launch(SHARED, (1,), (256,), 8193)": INVALID,
    "launch(LARGE, (1,), (1024,))": RESOURCES,
    "linked((1, 1, 1), (1024, 1, 1), 49152)": "cudaSuccess",
    "linked((1, 1, 1), (32, 1, 1), 232448, 232448)": "cudaSuccess",
    "linked((1, 1, 1), (32, 1, 1), 49153)": UNFIT,
    "linked((1, 1, 1), (32, 1, 1), 232448, 232447)": UNFIT,
    "linked((1, 1, 1), (1025, 1, 1))": UNFIT,
    "linked((1, 1, 1), (1, 1, 65))": UNFIT,
    "linked((1, 1, 1), (0, 1, 1))": UNFIT,
    "linked((0, 1, 1), (32, 1, 1))": UNFIT,
    "linked((1, 65536, 1), (32, 1, 1))": UNFIT,
    "load(90, 'one')": "ok",
    "load(80, 'one')": NO_CODE,
    "load(100, 'one')": NO_CODE,
    "load(90, 'two')": "CUDA_ERROR_NOT_FOUND: named symbol not found",
    "mix(0)": "ok",
    "mix(4)": "CUDA error: misaligned address",
    "torch.cuda.synchronize()": "CUDA error: misaligned address",
    "len(images.cpu())": "CUDA error: misaligned address",
}


@pytest.mark.slow
def test_what_a_device_refuses_fails():
    asked = "".join(f"\nprint(outcome(lambda: {each}))" for each in OUTCOMES)
    out, errors = run(LAUNCHES + asked)
    assert dict(zip(OUTCOMES, out.splitlines(), strict=True)) == OUTCOMES, errors
    assert "2048 × 1 × 1 threads" in errors and "a kernel of mixing.cu used 0x" in errors


@pytest.mark.slow
def test_a_kernel_of_dali_without_code_for_the_device_fails():
    """They are compiled for 5.0 and later; all other tests launch them on a 9.0. DALI does not look
    at what a launch returns, so a fixture of conftest.py asks the simulated GPU.
    """
    program = """
import ctypes, warnings
from nvidia.dali import fn, pipeline_def
warnings.simplefilter("ignore")
@pipeline_def(batch_size=2, num_threads=1, device_id=0)
def flipped():
    return fn.flip(fn.constant(idata=[1] * 12, shape=[2, 2, 3], layout="HWC", device="gpu"))
pipe = flipped()
pipe.build()
pipe.run()
print(ctypes.CDLL("libcuda.so.1").simulated_count(6))
"""
    out, errors = run(program, SIMULATED_GPU_FAIL="architecture=40")
    assert int(out) > 0 and "not compiled for an architecture of 40" in errors, errors
    assert run(program)[0] == "0"


LOAD_ALL = """
import sys, warnings
warnings.simplefilter("ignore")
import dali_pipes as dp
manifest = dp.Manifest.scan(sys.argv[1], progress=False)
options = {"transform": dp.EvalTransform(size=32, resize=32), "batch_size": 8, "shuffle": False}
with dp.build_loader(manifest, dp.DaliConfig(device="gpu"), **options) as loader:
    ids = [number for batch in loader for number in batch.ids.tolist()]
    print(ids == list(range(len(manifest))), loader.explain())
from tests.simulated_gpu.device import count
print(count("jpeg_engine") > 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("engines", "said"), [(0, "none (this GPU has none)"), (1, "35% (dec")])
def test_a_loader_uses_the_jpeg_engines_that_there_are(image_folder, engines, said):
    out, errors = run(LOAD_ALL, str(image_folder), SIMULATED_GPU_FAIL=f"engines={engines}")
    loaded, used = out.splitlines()[-2:] if out else ("", "")
    assert loaded.startswith("True") and f"the JPEG engine {said}" in loaded, out + errors
    assert used == str(bool(engines))
