"""scripts/gpu_check.sh as a user runs it, on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_check.config import GPU_CHECK_PARTS

SCRIPT = Path(__file__).parents[2] / "scripts/gpu_check.sh"


def run(*arguments, python=sys.executable, cwd=None):
    command = ["bash", str(SCRIPT), *map(str, arguments)]
    environment = {**os.environ, "PYTHON": python}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )


@pytest.mark.release
@pytest.mark.timeout(900)
def test_a_dry_run(image_folder, tmp_path):
    """Two jobs at once, the profile and the tests."""
    options = [
        "dry_run=true",
        "batch_size=8",
        f"data.cache_dir={tmp_path}",
        "parts=[corun,profile,suite]",
        "minutes=8",
    ]
    done = run(tmp_path / "out", f"data.train={image_folder}", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out/gpu_check.md").read_text() == done.stdout.removesuffix("\n")
    assert "corun … " in done.stderr and not (tmp_path / "outputs").exists()
    found = {
        name: part["result"]
        for name, part in json.loads((tmp_path / "out/gpu_check.json").read_text())["parts"].items()
    }
    assert (
        set(found["corun"]["arms"]) == {"synthetic", "dali"}
        and found["corun"]["work"]["corun"] == 2
    )
    assert (
        found["corun"]["arms"]["dali"]["ratio"]["images_per_s"]["low"]
        and found["corun"]["protocol"]["restart"] is False
    )
    threads = found["profile"]["cpu_s_per_1000_images"]
    assert {"all", "main"} < set(threads) and any("DALI" in name for name in threads)
    assert sum(seconds for name, seconds in threads.items() if name != "all") == pytest.approx(
        threads["all"]
    )
    if not torch.cuda.is_available():
        assert list(found["suite"]["counts"]) == ["skipped"] and not found["suite"]["failed"]


@pytest.mark.release
@pytest.mark.timeout(3000)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_from_start_to_end_on_the_simulated_gpu(image_folder, tmp_path):
    """All parts but the suite, which scripts/test.sh runs there itself."""
    parts = [name for name in GPU_CHECK_PARTS if name != "suite"]
    options = [
        f"data.train={image_folder}",
        f"data.cache_dir={tmp_path}",
        "batch_size=8",
        f"parts=[{','.join(parts)}]",
        "minutes=45",
    ]
    command = [
        sys.executable,
        "-m",
        "tests.simulated_gpu",
        "bash",
        str(SCRIPT),
        str(tmp_path / "out"),
        *options,
    ]
    environment = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=SCRIPT.parents[1], env=environment
    )
    report = (tmp_path / "out/gpu_check.md").read_text()
    errors = {
        name: part["error"]
        for name, part in json.loads((tmp_path / "out/gpu_check.json").read_text())["parts"].items()
    }
    assert errors == dict.fromkeys(parts), done.stderr
    assert report.startswith("# GPU check: NVIDIA H100 80GB HBM3 (simulated)")
    # the figures say nothing
    assert report.count("| not measured |") == 6


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so(image_folder, tmp_path):
    done = run(tmp_path / "out", f"data.train={image_folder}", f"data.cache_dir={tmp_path}")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr.startswith("error: PyTorch sees no GPU here; dry_run=true")
        and done.stderr.count("\n") == 1
    )


@pytest.mark.slow
def test_an_earlier_check_is_not_overwritten(image_folder, tmp_path):
    (tmp_path / "gpu_check.json").write_text("{}")
    done = run(tmp_path, f"data.train={image_folder}", "dry_run=true")
    assert done.returncode == 2 and "holds an earlier check; choose another folder" in done.stderr
    assert (tmp_path / "gpu_check.json").read_text() == "{}"


@pytest.mark.slow
def test_what_it_needs_is_named(tmp_path):
    done = run()
    assert done.returncode == 2 and done.stderr.startswith(
        "usage: bash scripts/gpu_check.sh OUT data.train=IMAGES"
    )
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    done = run(tmp_path, "data.train=x", python=str(bare))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "lacks a package (ModuleNotFoundError: No module named 'hydra')" in done.stderr
