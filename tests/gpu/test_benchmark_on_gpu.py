"""The benchmark where there is a GPU: all arms agree, and what the GPU did is measured or the
reason is given.
"""

import json
import subprocess
import sys

import pytest
import torch

from dali_pipes.measure.trial import gpu_uuid
from dali_pipes.system.nvml import FIGURES, Gpu

pytestmark = pytest.mark.needs_cuda
ON_GPU = (
    "gpu_utilization",
    "sm_utilization",
    "nvjpg_utilization",
    "gpu_memory_mib",
    "joules_per_1000_images",
    "pinned_mib",
)


@pytest.mark.alone
def test_the_gpu_that_pytorch_uses_is_the_one_that_is_asked():
    gpu = Gpu(gpu_uuid())
    before = gpu.sample()["memory_mib"]
    held = torch.zeros(512 * 2**20, dtype=torch.uint8, device="cuda")
    found = gpu.sample()
    assert found["memory_mib"] >= before + 500 and len(held)
    assert all(found[figure] is not None or figure in gpu.missing for figure in FIGURES)
    assert all(
        0 <= found[name] <= 1
        for name in FIGURES
        if name.endswith("utilization") and found[name] is not None
    )


@pytest.mark.gpu_pixels
@pytest.mark.parametrize("workload", ["loader", "train"])
def test_arms_on_the_gpu(image_folder, tmp_path, workload):
    options = [
        "pairs=1",
        "min_seconds=3",
        "max_warmup_seconds=5",
        "batch_size=16",
        "loaders.torch.num_workers=2",
        "loaders.dali.num_threads=2",
        "loaders.dali_native.num_threads=2",
    ]
    command = [
        *(sys.executable, "-m", "dali_pipes.cli", "benchmark"),
        f"data.train={image_folder}",
        f"workload={workload}",
        "model=resnet18",
        *options,
    ]
    arms = "arms=[torch,dali,dali_native,synthetic]"
    folders = [f"out={tmp_path}", f"data.cache_dir={tmp_path}"]
    done = subprocess.run([*command, arms, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result["agreement"]["arms"]) == {"dali"} and result["agreement"]["same_ids"]
    for arm in result["arms"].values():
        assert arm["device"] == "cuda:0" and arm["images_per_s"] > 0
        assert all(arm[figure] is not None or figure in result["not_measured"] for figure in ON_GPU)
    assert result["arms"]["dali"]["gpu_memory_mib"] > 100
