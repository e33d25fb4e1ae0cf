"""The doctor where there is a GPU: every check of it, and the JPEG engines by their counter."""

import json
import subprocess
import sys

import pytest
import torch

import dali_pipes as dp
from dali_pipes.system.child import in_child
from dali_pipes.system.nvml import Gpu
from dali_pipes.tools.doctor import decode, images, machine, software

pytestmark = pytest.mark.needs_cuda


def test_every_check_of_the_gpu():
    for check in (
        machine.driver_and_gpus,
        decode.dali_on_cpu,
        software.nvimagecodec,
        software.cupy_kernel,
    ):
        finding = check()
        assert finding.status == "ok" or "another chroma upsampling" in finding.found, (
            f"{check.__name__}: {finding}"
        )


@pytest.mark.gpu_pixels
@pytest.mark.parametrize("decode", ["auto", "whole"])
def test_what_users_run_decodes_on_the_gpu_as_on_the_cpu(decode):
    finding = images.made_images(
        dp.DaliConfig(device="gpu", decode=decode), 32, 120, torch.device("cuda", 0)
    )
    assert finding.status == "ok" or "damaged images are delivered" in finding.found, finding


@pytest.mark.alone
def test_the_verdict_on_the_jpeg_engines_is_that_of_the_counter():
    """Whatever this GPU has: "ok" if and only if the counter moves while DALI is asked to use the
    engines.
    """
    finding = decode.jpeg_engines()
    seen = Gpu(machine.uuid())
    pipeline = decode._pipeline(decode.make_jpeg()[0], decode.BATCH, 0, hw_decoder_load=1.0)
    busy = decode.highest_use(seen, pipeline.run, 2)
    assert (finding.status == "ok") == (busy is not None and busy > 0.01), (
        f"{finding}, counter {busy}"
    )
    pipeline = decode._pipeline(decode.make_jpeg()[0], decode.BATCH, 0, hw_decoder_load=0.0)
    decode.highest_use(seen, pipeline.run, 1)  # what the engines did before has left the average
    assert (decode.highest_use(seen, pipeline.run, 1) or 0) <= 0.01


def test_no_visible_gpu_is_said_so(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = in_child("dali_pipes.tools.doctor.machine:driver_and_gpus", 120).value
    assert found["status"] == "failed" and "CUDA_VISIBLE_DEVICES is ''" in found["found"]


@pytest.mark.gpu_pixels
def test_the_job(image_folder, tmp_path):
    command = [
        *(sys.executable, "-m", "dali_pipes.cli", "doctor"),
        f"data.train={image_folder}",
        f"data.cache_dir={tmp_path}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    message = json.loads(done.stdout)
    assert done.returncode == 0 and message["can_train_on_gpu"], done.stderr
    checks = [each["check"] for each in message["findings"] if each["group"] == "GPU"]
    assert checks == ["driver and GPUs", "DALI", "your images", "JPEG engines", "NVML"]
    assert done.stderr.splitlines()[-1].startswith("Training on a GPU can work here")
