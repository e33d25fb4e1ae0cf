"""dali-pipes train as it is run: killed and gone on with, on several ranks, stopped, and wrong."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from ranks import torchrun
from training.conftest import same, weights

import dali_pipes as dp
from dali_pipes.training.config import ModelConfig
from dali_pipes.training.network.build import build_network

# programs that import PyTorch, one after the other, on a machine that others use
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TRAIN = ["-m", "dali_pipes.cli", "train"]
SMALL = [
    "model.name=squeezenet1_1",
    "transform.size=32",
    "eval_transform.resize=36",
    "epochs=2",
    "warmup_epochs=0",
    "batch_size=8",
]
SMALL += ["optimizer.lr=0.01", "optimizer.lr_batch_size=null", "loader=dali_cpu"]


@pytest.fixture
def start(image_folder, tmp_path):
    """Starts it in a folder of its own; one that a test leaves behind is killed."""
    running = []

    def go(*options, ranks=0, images=image_folder):
        command = torchrun(ranks) if ranks else [sys.executable]
        data = [
            f"data.train={images}",
            f"data.val={images}",
            f"data.cache_dir={tmp_path / 'cache'}",
        ]
        (tmp_path / "here").mkdir(exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        environment.pop("MKL_CBWR", None)  # of conftest.py
        with (tmp_path / "stderr").open("w") as stderr:
            process = subprocess.Popen(
                [*command, *TRAIN, *data, *SMALL, *options],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=tmp_path / "here",
                env=environment,
                start_new_session=True,
            )
        running.append(process)
        return process

    yield go
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def finish(tmp_path):
    def wait(process, status=0):
        out, _ = process.communicate(timeout=200)
        message = (tmp_path / "stderr").read_text()
        assert process.returncode == status, message[-3000:]
        return json.loads(out.splitlines()[-1]), message  # gloo prints to stdout, too

    return wait


def rows(folder):
    with (folder / "steps.csv").open(newline="") as text:
        return list(csv.DictReader(text))


def until(condition, process):
    deadline = time.time() + 120
    while not condition():
        assert time.time() < deadline and process.poll() is None
        time.sleep(0.001)


def test_killed_in_mid_epoch_and_gone_on_with(start, finish, tmp_path):
    """With -9: the same batches, and the same weights bit for bit."""
    often = ["batch_size=2", "checkpoint_every_s=0"]
    never, killed = tmp_path / "never", tmp_path / "killed"
    finish(start(*often, f"out={never}"))
    process = start(*often, f"out={killed}")
    until((killed / "last.pt").exists, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    at = weights(killed)["loader"]
    assert 0 < at["samples"] < 36
    summary, message = finish(start(*often, f"out={killed}", "resume=auto"))
    assert f"goes on at epoch {at['epoch'] + 1}" in message and summary["images"] == 72
    one, other = weights(never), weights(killed)
    assert all(same(one[part], other[part]) for part in ("model", "optimizer", "loader", "random"))
    assert rows(never) == rows(killed) and len(rows(killed)) == 36
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.release
def test_killed_in_the_first_evaluation(start, finish, tmp_path):
    """The checkpoint before it is no newer than the logs: after the resume each step is there."""
    out = tmp_path / "run"
    process = start(f"out={out}", "eval_batch_size=1")
    until((out / "last.pt").exists, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    at = weights(out)["loader"]
    steps = at["epoch"] * 4 + at["samples"] // 8
    assert steps and [int(row["step"]) for row in rows(out)] == list(range(steps))
    finish(start(f"out={out}", "resume=auto"))
    assert [int(row["step"]) for row in rows(out)] == list(range(8))
    with (out / "epochs.csv").open(newline="") as text:
        assert [row["epoch"] for row in csv.DictReader(text)] == ["0", "1"]


@pytest.fixture
def options_of(manifest, tmp_path):
    """The options of a run of each kind, after the common ones."""

    def write(kind):
        if kind == "finetuned":
            # of seven classes, where the images have five
            network = build_network(ModelConfig(name="mobilenet_v3_small"), 7, 3)
            torch.save(network.state_dict(), tmp_path / "seven.pt")
            return [f"model.weights={tmp_path / 'seven.pt'}", "model.freeze=[features.0.*]"]
        label = {"multilabel": "a;b", "regression": "0.5"}[kind]
        lines = [f"{manifest.path(sample)},{label}" for sample in range(len(manifest))]
        lines[0] = lines[0].replace(label, {"multilabel": "c", "regression": "2"}[kind])
        (tmp_path / "t.csv").write_text("\n".join(["path,label", *lines]))
        data = [f"data.train={tmp_path / 't.csv'}", f"data.val={tmp_path / 't.csv'}"]
        return [*data, *(["data.label_separator=;"] if kind == "multilabel" else [])]

    return write


@pytest.mark.release
@pytest.mark.parametrize(
    "kind",
    [
        "finetuned",
        # the same mechanism, for a minute each
        *(pytest.param(kind, marks=pytest.mark.release) for kind in ("multilabel", "regression")),
    ],
)
def test_each_task_killed_in_mid_epoch(start, options_of, tmp_path, kind):
    """With -9: weights, optimizer, loader and random states are as if it was never killed."""
    options = [*options_of(kind), "model.name=mobilenet_v3_small", "checkpoint_every_s=0"]
    killed, never = tmp_path / "killed", tmp_path / "never"
    process, undisturbed = (start(*options, f"out={out}") for out in (killed, never))
    until((killed / "last.pt").exists, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    at = weights(killed)["loader"]
    assert at["epoch"] == 0 and at["samples"] > 0
    process = start(*options, f"out={killed}", "resume=auto")
    for each in (undisturbed, process):
        assert each.wait() == 0, (tmp_path / "stderr").read_text()[-3000:]
    one, other = weights(never), weights(killed)
    assert all(same(one[part], other[part]) for part in ("model", "optimizer", "loader", "random"))
    assert rows(never) == rows(killed)


@pytest.mark.parametrize("clip", [0.5, pytest.param(None, marks=pytest.mark.release)])
def test_ranks_share_one_run_and_count_every_image_once(start, finish, tmp_path, clip):
    """Two ranks learn what one does with two parts per step, up to rounding, which batch
    normalization raises to 1 % in one step.

    One thread differs from two by as much. Validation has an odd number of images.
    """
    options = [
        "batch_size=18",
        "eval_batch_size=5",
        "model.name=shufflenet_v2_x0_5",
        "transform.size=64",
        "eval_transform.resize=72",
        "epochs=1",
        "ema_decay=0.5",
        *([f"optimizer.clip_grad_norm={clip}", "optimizer.weight_decay=0"] if clip else []),
    ]
    summary, message = finish(start(f"out={tmp_path / 'two'}", *options, ranks=2))
    assert (
        summary["ranks"],
        summary["global_batch_size"],
        summary["val_images"],
        summary["images"],
    ) == (2, 36, 37, 36)
    assert "shared by 2 ranks" in message and message.count("epoch 1 of 1") == 1
    last = ["eval_only=true", f"checkpoint={tmp_path / 'two/last.pt'}"]
    found, _ = finish(start(*options, *last))
    assert (found["top1"], found["top5"]) == (summary["top1"], summary["top5"])
    # of the weights that are kept, on both ranks
    assert found["loss"] == pytest.approx(summary["val_loss"], rel=1e-6)
    finish(start(f"out={tmp_path / 'one'}", *options, "accumulate=2"))
    two, one = weights(tmp_path / "two"), weights(tmp_path / "one")
    assert two["history"][0]["loss"] == pytest.approx(one["history"][0]["loss"], rel=1e-4)
    torch.manual_seed(0)
    new = build_network(ModelConfig(name="shufflenet_v2_x0_5"), 5)
    learned, other = (
        torch.cat(
            [(state["model"][name] - each).flatten() for name, each in new.named_parameters()]
        )
        for state in (one, two)
    )
    assert learned.norm() > 0.001 and (other - learned).norm() < 0.05 * learned.norm()
    if clip:
        lr = one["optimizer"]["param_groups"][0]["lr"]
        assert [each.norm().item() / lr for each in (learned, other)] == pytest.approx(
            [clip, clip], rel=1e-2
        )
    assert not list((tmp_path / "here").iterdir())


def test_two_ranks_are_stopped_and_one_goes_on(start, finish, tmp_path):
    """The signal reaches one rank only; both stop after the same step."""
    out = tmp_path / "run"
    process = start(f"out={out}", "batch_size=2", "epochs=40", "checkpoint_every_s=0", ranks=2)
    until(lambda: (out / "last.pt").exists(), process)
    ranks = [
        each.pid
        for each in psutil.Process(process.pid).children(recursive=True)
        if each.cmdline()[1:2] == ["-u"]
    ]
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGUSR1)
    process.wait(timeout=100)
    state = weights(out)
    assert "stopped by SIGUSR1 and saved" in (out / "train.log").read_text()
    epochs = state["loader"]["epoch"] + 1
    summary, _ = finish(start(f"out={out}", "batch_size=4", f"epochs={epochs}", "resume=auto"))
    assert (
        summary["ranks"] == 1 and summary["epochs"] == epochs and summary["images"] == epochs * 36
    )
    assert [int(row["step"]) for row in rows(out)] == list(range(epochs * 9))


WORKERS = ["loader=torch", "loader.num_workers=2"]
STARTED = {
    "fork": [*WORKERS, "loader.multiprocessing_context=fork"],
    "spawn": [*WORKERS, "loader.multiprocessing_context=spawn"],
    "forkserver": [*WORKERS, "loader.multiprocessing_context=forkserver"],
    "dali": ["loader=dali_cpu"],
}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("loader", "moment", "number"),
    [
        ("fork", "start", signal.SIGTERM),
        ("fork", "evaluation", signal.SIGTERM),
        ("spawn", "steps", signal.SIGTERM),
        ("forkserver", "start", signal.SIGINT),
        *(
            pytest.param(*each, marks=pytest.mark.release)  # 20 s each
            for each in (
                ("fork", "steps", signal.SIGTERM),
                ("fork", "steps", signal.SIGINT),
                ("fork", "steps", signal.SIGUSR1),
                ("fork", "checkpoint", signal.SIGTERM),
                ("spawn", "start", signal.SIGTERM),
                ("spawn", "start", signal.SIGUSR2),
                ("forkserver", "steps", signal.SIGTERM),
                ("dali", "evaluation", signal.SIGINT),
                ("dali", "steps", signal.SIGTERM),
            )
        ),
    ],
)
def test_a_signal_to_all_processes_saves(start, tmp_path, loader, moment, number):
    """As a terminal, `timeout`, SLURM and systemd send it: the DataLoader's workers get it too."""
    out = tmp_path / "run"
    reached = {
        "start": lambda: (out / "config.yaml").exists(),
        "steps": lambda: (out / "last.pt").exists() and weights(out)["loader"]["samples"] > 2,
        # it is written before the first evaluation, and then after the epoch
        "evaluation": (out / "last.pt").exists,
        "checkpoint": lambda: [*out.glob(".last.pt.*")],
    }
    often = ["checkpoint_every_s=0"] if moment in ("steps", "checkpoint") else []
    options = [*STARTED[loader], *often, "batch_size=1", "eval_batch_size=1", "epochs=40"]
    process = start(f"out={out}", *options)
    until(reached[moment], process)
    os.killpg(process.pid, number)
    process.communicate(timeout=200)
    assert process.returncode == 128 + number, (tmp_path / "stderr").read_text()[-3000:]
    assert f"stopped by {number.name} and saved" in (out / "train.log").read_text()
    at = weights(out)["loader"]
    # batches of one: an epoch has a step for each of the 37 images
    assert [int(row["step"]) for row in rows(out)] == list(range(at["epoch"] * 37 + at["samples"]))
    deadline = time.time() + 60
    with pytest.raises(ProcessLookupError):  # no worker is left
        while time.time() < deadline:
            os.killpg(process.pid, 0)


def test_a_rank_that_fails_ends_all_with_the_reason(start, image_folder, tmp_path):
    folder = shutil.copytree(image_folder, tmp_path / "images")
    manifest = dp.Manifest.scan(folder, progress=False)
    manifest.save(tmp_path / "m.parquet")
    bad = Path(manifest.path(5))
    bad.write_bytes(bad.read_bytes()[:-200])
    process = start(
        f"out={tmp_path / 'run'}", "batch_size=4", ranks=2, images=tmp_path / "m.parquet"
    )
    process.communicate(timeout=150)
    assert process.returncode != 0
    message = (tmp_path / "stderr").read_text()
    assert bad.name in message and "error: epoch" in message


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("option", "line"),
    [("data.val=/no/such", "/no/such: no such folder"), ("epochs=0", "epochs is 0")],
)
def test_a_mistake_is_reported_once(option, line, start, tmp_path):
    process = start(f"out={tmp_path / 'run'}", option, ranks=2)
    process.communicate(timeout=150)
    message = (tmp_path / "stderr").read_text()
    assert process.returncode != 0 and message.count(line) == 1


def test_a_sweep_has_a_folder_for_each_job(start, finish, tmp_path):
    sweep = tmp_path / "sweep"
    process = start("-m", "loader=torch,dali_cpu", "epochs=1", f"hydra.sweep.dir={sweep}")
    process.communicate(timeout=200)
    assert process.returncode == 0, (tmp_path / "stderr").read_text()
    losses = [[float(row["loss"]) for row in rows(sweep / job)] for job in "01"]
    assert losses[0] == pytest.approx(losses[1], abs=0.05) and losses[0] != losses[1]
    assert (
        "num_workers" in (sweep / "0/config.yaml").read_text()
        and "device: cpu" in (sweep / "1/config.yaml").read_text()
    )
    with (sweep / "sweep.csv").open(newline="") as file:
        assert {row["loader"] for row in csv.DictReader(file)} == {"torch", "dali_cpu"}
    said = " ".join((tmp_path / "stderr").read_text().split())
    assert "the best of 2 runs. The table of the sweep is" in said


@pytest.mark.release
def test_a_sweep_under_torchrun_is_refused(start, tmp_path):
    process = start("-m", "loader=torch,dali_cpu", ranks=1)
    process.communicate(timeout=100)
    assert (
        process.returncode != 0
        and "-m under torchrun would sweep on every rank" in (tmp_path / "stderr").read_text()
    )
