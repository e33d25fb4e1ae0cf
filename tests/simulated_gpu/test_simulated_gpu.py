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


def test_its_name_says_so_and_there_are_two():
    program = (
        "import torch; print([torch.cuda.get_device_name(each) for each in "
        "range(torch.cuda.device_count())])"
    )
    name = "'NVIDIA H100 80GB HBM3 (simulated)'"
    assert run(program)[0] == f"[{name}, {name}]"
    assert run(program, CUDA_VISIBLE_DEVICES="1")[0] == f"[{name}]"
    assert run(program, CUDA_VISIBLE_DEVICES="")[0] == "[]"


def test_a_wait_that_is_missing_shows():
    assert int(run(COPIES.format(wait="pass"))[0]) > 0
    assert run(COPIES.format(wait="torch.cuda.current_stream().wait_stream(side)"))[0] == "0"
    assert run(COPIES.format(wait="pass"), SIMULATED_GPU_EAGER="1")[0] == "0"


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


def test_a_kernel_that_does_not_fit_fails():
    program = """
import cupy
kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
try:
    kernel((1,), (2048,), ())
except cupy.cuda.driver.CUDADriverError as error:
    print("refused")
"""
    out, errors = run(program)
    assert (
        out == "refused"
        and "nothing was launched with a grid of 1 × 1 × 1 blocks of 2048 × 1 × 1 threads" in errors
    )
