"""The wheel as a user has it: installed, the checkout out of reach, in a folder of the user's
own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
SMALL = [
    "experiment=mine",
    "model.name=squeezenet1_1",
    "transform.size=32",
    "eval_transform.resize=36",
    "loader=dali_cpu",
]


@pytest.fixture
def site(tmp_path):
    """The folder that the wheel is installed in."""
    uv = [sys.executable, "-m", "uv"]
    build = [
        *uv,
        "build",
        "--quiet",
        "--wheel",
        "--build-constraints=requirements/build.txt",
        f"--out-dir={tmp_path / 'dist'}",
    ]
    subprocess.run(build, cwd=REPO, check=True)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    install = [
        *uv,
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        f"--python={sys.executable}",
        f"--target={tmp_path / 'site'}",
        wheel,
    ]
    subprocess.run(install, check=True)
    return tmp_path / "site"


@pytest.mark.slow
@pytest.mark.timeout(600)  # six programs, each of which imports PyTorch
def test_a_wheel_needs_no_checkout(site, image_folder, tmp_path):
    here = tmp_path / "here"
    (here / "conf/experiment").mkdir(parents=True)
    (here / "conf/experiment/mine.yaml").write_text(
        "# @package _global_\nbatch_size: 16\nepochs: 1\nwarmup_epochs: 0\n"
    )
    options = {
        "env": {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        "cwd": here,
        "capture_output": True,
        "text": True,
        "check": False,
    }

    def dali_pipes(*words, status=(0,)):
        done = subprocess.run(
            [site / "bin/dali-pipes", *words, f"data.cache_dir={tmp_path / 'cache'}"], **options
        )
        assert done.returncode in status, done.stderr
        return done.stdout

    find = "import importlib.util; print(importlib.util.find_spec('dali_pipes').origin)"
    assert (
        subprocess.run([sys.executable, "-P", "-c", find], **options).stdout
        == f"{site}/dali_pipes/__init__.py\n"
    )
    data = f"data.train={image_folder}"
    assert {
        each["check"] for each in json.loads(dali_pipes("doctor", status=(0, 1)))["findings"]
    } >= {"PyTorch", "DALI"}
    assert "JPEG 37" in dali_pipes("scan", data)
    quick = [
        "experiment=quick",
        "pairs=1",
        "min_seconds=0.3",
        "max_warmup_seconds=1",
        "restart=false",
        "agreement_images=0",
        "loaders.dali_cpu.num_threads=2",
    ]
    result = json.loads(
        dali_pipes("benchmark", data, "arms=[dali_cpu,synthetic]", *quick).splitlines()[-1]
    )
    assert result["arms"]["dali_cpu"]["images_per_s"] > 0 and (here / "runs/benchmark").is_dir()
    summary = json.loads(
        dali_pipes("train", data, f"data.val={image_folder}", *SMALL, "out=two").splitlines()[-1]
    )
    assert summary["images"] == 32 and (here / "two/best.pt").exists()
