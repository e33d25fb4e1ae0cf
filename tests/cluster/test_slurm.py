"""On a real SLURM of one node: two tasks, preempted in mid-epoch, queued again, gone on with;
preparation as an array job.
"""

import csv
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from training.conftest import same, weights

REPO = Path(__file__).parents[2]
SETUP = str(Path(__file__).with_name("slurm.sh"))
pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """An environment in which SLURM's commands find it."""
    if os.geteuid() or not shutil.which("apt-get"):
        pytest.skip("needs root and Debian's packages")
    folder = tmp_path_factory.mktemp("slurm")
    if subprocess.run(["bash", SETUP, "install", folder], check=False, timeout=250).returncode:
        pytest.skip("Debian's slurmctld, slurmd and munge cannot be had here")
    try:
        subprocess.run(["bash", SETUP, "start", folder], check=True, timeout=100)
        yield {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
    finally:
        subprocess.run(["bash", SETUP, "stop", folder], check=True, timeout=60)


@pytest.fixture
def submit(slurm, image_folder, tmp_path):
    """Starts `dali-pipes train`, which submits two tasks and waits for them; `further` options
    come last.
    """

    def go(name, *further):
        options = [
            f"data.train={image_folder}",
            f"data.val={image_folder}",
            f"data.cache_dir={tmp_path / 'cache'}",
        ]
        options += [
            "cluster=slurm",
            "hydra.launcher.tasks_per_node=2",
            "hydra.launcher.cpus_per_task=1",
        ]
        options += [
            "model.name=squeezenet1_1",
            "transform.size=32",
            "eval_transform.resize=36",
            "loader=dali_cpu",
            "epochs=2",
        ]
        options += [
            "batch_size=1",
            "checkpoint_every_s=0",
            f"hydra.sweep.dir={tmp_path / name}",
            *further,
        ]
        return subprocess.Popen(
            [sys.executable, "-m", "dali_pipes.cli", "train", *options],
            cwd=tmp_path,
            env=slurm,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return go


def finish(process, folder):
    message, _ = process.communicate(timeout=250)
    logs = [file.read_text()[-2000:] for file in folder.rglob("*_log.*")]
    assert process.returncode == 0, "\n".join([message, *logs])
    return weights(folder / "0")


@pytest.mark.timeout(600)
def test_a_sweep_is_a_job_for_each_combination(submit, tmp_path):
    options = [
        "-m",
        "loader=torch,dali_cpu",
        "hydra.launcher.tasks_per_node=1",
        "epochs=1",
        "batch_size=8",
    ]
    first = finish(submit("sweep", *options), tmp_path / "sweep")
    second = weights(tmp_path / "sweep/1")
    assert first["history"][0]["loss"] == pytest.approx(second["history"][0]["loss"], abs=0.05)
    assert first["loader"] == second["loader"] and not same(first["model"], second["model"])
    # both ended as jobs of the cluster, and the page has both
    with (tmp_path / "sweep/sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["loader"] for row in rows} == {"torch", "dali_cpu"}
    assert all(row["best top1"] and row["in epoch"] == "1 of 1" for row in rows)


@pytest.mark.timeout(900)
def test_preempted_and_queued_again(slurm, submit, tmp_path):
    never = finish(submit("never"), tmp_path / "never")
    process, last = submit("preempted"), tmp_path / "preempted/0/last.pt"
    deadline = time.time() + 200
    while not last.exists() or weights(last.parent)["loader"]["samples"] < 10:
        assert time.time() < deadline and process.poll() is None, process.stdout.read()
        time.sleep(0.05)
    ask = partial(subprocess.check_output, env=slurm, text=True)
    (job,) = ask(["squeue", "-h", "-o", "%A"]).split()
    ask(["scancel", "--signal=USR2", job])
    while "PENDING" not in ask(["squeue", "-h", "-o", "%T"]):
        assert time.time() < deadline and process.poll() is None
        time.sleep(0.5)
    # SLURM itself waits for two minutes
    ask(["scontrol", "update", f"JobId={job}", "StartTime=now"])
    preempted = finish(process, tmp_path / "preempted")
    assert "Restarts=1" in ask(["scontrol", "show", "job", job])
    log = (tmp_path / "preempted/0/train.log").read_text()
    assert (
        "stopped by SIGUSR2 and saved" in log and "goes on at epoch" in log and "on 2 × cpu" in log
    )
    assert all(
        same(never[part], preempted[part]) for part in ("model", "optimizer", "loader", "random")
    )
    assert len(preempted["history"]) == 2 and preempted["history"][-1]["val_images"] == 37


@pytest.mark.timeout(400)
def test_the_array_job_of_the_documentation_makes_the_same_shards(slurm, image_folder, tmp_path):
    script = (REPO / "docs/deploy/slurm-prepare.sh").read_text()
    (tmp_path / "set").mkdir()
    for part in ("train", "val"):
        (tmp_path / "set" / part).symlink_to(image_folder)
    options = [f"data.root={tmp_path / 'set'}", "to=shards", "shard_mib=1"]
    here = {
        "PARTS=8": "PARTS=3",
        "data.root=/shared/imagenet": " ".join(options),
        "out=/shared/imagenet_shards to=shards resize=256": f"out={tmp_path / 'array'}",
        "--cpus-per-task=16": "--cpus-per-task=1",
        "--cpus-per-task=4": "--cpus-per-task=1",
    }
    for given, instead in here.items():
        assert script.count(given) == 1
        script = script.replace(given, instead)
    environment = slurm | {"PATH": f"{Path(sys.executable).parent}:{slurm['PATH']}"}
    run = partial(
        subprocess.run,
        check=True,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    run(["bash", "-c", script])
    run(["dali-pipes", "prepare", f"out={tmp_path / 'whole'}", *options])
    deadline = time.time() + 150
    while run(["squeue", "-h"]).stdout:
        assert time.time() < deadline, run(["squeue"]).stdout
        time.sleep(0.5)
    logs = "\n".join(file.read_text()[-1000:] for file in tmp_path.glob("slurm-*.out"))
    assert len(list(tmp_path.glob("slurm-*.out"))) == 4, logs
    array, whole = tmp_path / "array", tmp_path / "whole"
    shards = {path.relative_to(whole): path.read_bytes() for path in whole.rglob("*.tar")}
    assert (
        len(shards) > 5
        and {path.relative_to(array): path.read_bytes() for path in array.rglob("*.tar")} == shards
    ), logs
    assert (array / "prepared.json").exists(), logs
