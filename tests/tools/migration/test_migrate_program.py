"""dali-pipes migrate -- train.py, from the words of the command line to the result."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from dali_pipes.errors import ConfigError
from dali_pipes.system.program.words import ProgramJob, read_program

# its folder may be made once only
PROGRAM = """
import os, torch
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import datasets, transforms as T

os.mkdir("log")
steps = T.Compose([T.RandomResizedCrop(32), T.ToTensor()])
data = ConcatDataset([datasets.ImageFolder({images!r}, steps)] * 10)
loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=1, drop_last=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
try:
    for images, labels in loader:
        model(images[:, 0, 0, :4]).sum().backward()
        optimizer.step()
finally:
    print("saved")
"""
WAITS = """
import multiprocessing, os, pathlib, time

def work():
    pathlib.Path("part").write_text(f"{os.getppid()} {os.getpid()}")
    os.rename("part", "worker")
    time.sleep(600)

if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    try:
        worker.join()
    finally:
        pathlib.Path("saved").touch()
"""
QUICK = ("pairs=5", "min_seconds=0.1", "min_batches=2", "max_warmup_seconds=0.1")


def start(folder, *options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = ["migrate", *options, "--", "train.py", "--lr", "1"]
    return subprocess.Popen(
        [sys.executable, "-m", "dali_pipes.cli", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_program_is_run_once_and_measured_with_its_control(tmp_path, image_folder):
    text = PROGRAM.format(images=str(image_folder))
    (tmp_path / "train.py").write_text(text)
    options = ("loader=torch", "loader.num_workers=0", "data.cache_dir=null", "agreement_images=0")
    process = start(tmp_path, *options, *QUICK)
    stdout, stderr = process.communicate(timeout=180)
    assert process.returncode == 0, stderr
    result = json.loads(stdout)

    assert list(result["arms"]) == ["yours", "torch"] and result["baseline"] == "yours"
    assert all(arm["images_per_s"] > 0 for arm in result["arms"].values())
    described = "the DataLoader of train.py:9, in train.py --lr 1, with 1 worker"
    assert result["arms"]["yours"]["decodes"] == described
    assert result["work"]["batch_size"] == 8 and result["protocol"]["restart"] is False
    assert "saved" not in stderr, "nothing that follows in the program runs"

    (folder,) = tmp_path.glob("runs/migrate/*")
    assert (folder / "report.html").exists() and (folder / "result.json").exists()
    migration = json.loads((folder / "migration.json").read_text())
    assert migration["diff"] == (folder / "program.diff").read_text()
    assert "+loader = dp.from_torch(loader)" in migration["diff"].splitlines()
    assert migration["program"] == ["train.py", "--lr", "1"]
    assert {each.name for each in tmp_path.iterdir()} == {"train.py", "log", "runs"}

    patch = ["git", "apply", "-p0", str(folder / "program.diff")]
    subprocess.run(patch, cwd=tmp_path, check=True)
    expected = text.replace(
        "transforms as T\n", "transforms as T\nimport dali_pipes as dp\n"
    ).replace("drop_last=True)\n", "drop_last=True)\nloader = dp.from_torch(loader)\n")
    assert (tmp_path / "train.py").read_text() == expected


@pytest.mark.timeout(250)
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_what_is_stopped_leaves_no_process_and_runs_nothing_more(tmp_path, number):
    (tmp_path / "train.py").write_text(WAITS)
    process = start(tmp_path)
    while not (tmp_path / "worker").exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    pids = [*map(int, (tmp_path / "worker").read_text().split())]
    process.send_signal(number)
    process.communicate(timeout=100)
    assert process.returncode == 128 + number
    # a killed process is there until its new parent has waited for it
    deadline = time.monotonic() + 60
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(is_running, pids)) and not (tmp_path / "saved").exists()


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_at_the_limit_the_place_is_named(tmp_path):
    (tmp_path / "train.py").write_text("import time\n\ntime.sleep(100)\n")
    process = start(tmp_path, "limit=4")
    stdout, stderr = process.communicate(timeout=60)
    last = "its training had not begun; it was at train.py:3"
    assert stderr.splitlines()[-1] == (
        f"error: train.py --lr 1 did not come to its training within limit=4 s ({last})"
    )
    assert (process.returncode, stdout) == (1, "")


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_a_program_that_fails_ends_with_its_own_status_and_output(tmp_path):
    (tmp_path / "train.py").write_text(
        "import argparse\nargparse.ArgumentParser('mine').parse_args()\n"
    )
    process = start(tmp_path)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (2, "")
    assert "mine: error: unrecognized arguments: --lr 1" in stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["torchrun", "--nproc-per-node", "2", "t.py"], "torchrun .* migrate -- t.py$"),
        (["a.ipynb"], r"notebook; in it, call dali_pipes.explain\(loader\)"),
        (["python", "-c", "print()"], "cannot be migrated; .* dali-pipes migrate -- train.py"),
        ([], "dali-pipes migrate -- train.py ARGS"),
    ],
)
def test_what_is_no_program_is_refused_in_the_words_of_migrate(words, message):
    from dali_pipes.tools.migration.run import _JOB

    assert isinstance(_JOB, ProgramJob)
    with pytest.raises(ConfigError, match=message):
        read_program(words, _JOB)


@pytest.mark.few
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["workload=cold"], "workload=cold starts processes for each trial, and migrate runs your"),
        (["corun=2"], "corun=2 starts processes for each trial"),
        (["a:b"], "a:b and a program behind --: migrate takes one of them"),
        (["batch_size=8"], "batch_size=8: images, transform and batch size are those of your"),
        (["limit=0"], "limit is 0"),
    ],
)
def test_options_that_do_not_go_with_a_program(command, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    done = command("migrate", *options, "--", "train.py")
    assert done.returncode == 2 and done.stderr.startswith(f"error: {message}"), done.stderr
    assert not (tmp_path / "ran").exists()
