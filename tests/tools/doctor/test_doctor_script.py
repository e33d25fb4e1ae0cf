"""The job `doctor` as a user runs it, on this machine and on one that is set up wrongly."""

import importlib
import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch

from dali_pipes.system.child import Answer
from dali_pipes.tools.doctor import run

GROUPS = ["software", "CPU and memory", "GPU"]


def findings(done):
    """Those of its one line of JSON, by group and check."""
    assert "Traceback" not in done.stderr
    (line,) = done.stdout.splitlines()
    message = json.loads(line)
    assert message["can_train_on_gpu"] == (done.returncode == 0)
    return {(each["group"], each["check"]): each for each in message["findings"]}, message


def called(function):
    """What `in_child` would have as the value of its answer."""
    module, name = function.split(":")
    return asdict(getattr(importlib.import_module(module), name)())


@pytest.fixture
def doctor(command, monkeypatch, tmp_path):
    """In this process, with every check that it would start a process for."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(run, "in_child", lambda function, limit_s: Answer(called(function), ""))
    return lambda *words: command("doctor", *words, f"data.cache_dir={tmp_path}")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_machine_without_a_gpu(doctor, image_folder, tmp_path):
    done = doctor(f"data.train={image_folder}", "loader=dali", "loader.decode=whole")
    found, message = findings(done)
    assert done.returncode == 1 and message["schema"] == 1
    assert list(dict.fromkeys(group for group, _ in found)) == GROUPS
    assert [check for group, check in found if group == "GPU"] == ["driver and GPUs"]
    assert "CPU loaders work: loader=dali_cpu" in found["GPU", "driver and GPUs"]["remedy"]
    assert all(
        found["software", check]["status"] == "ok"
        for check in ("Python", "PyTorch", "one CUDA", "DALI", "nvImageCodec", "CuPy")
    )
    assert {"python", "torch", "nvidia-dali-cuda120"} <= set(message["versions"])
    assert done.stderr.splitlines()[-1].startswith(
        "Training on a GPU cannot work here; failed: driver and GPUs (GPU)"
    )
    assert all(len(line) <= 80 for line in done.stderr.splitlines()[:-1])
    assert os.listdir(tmp_path) == [
        name for name in os.listdir(tmp_path) if name.endswith(".arrow")
    ]


@pytest.mark.few
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("data.train=/no/such/folder", "/no/such/folder: no such folder"),
        ("split=tets", "split is 'tets'; choose one of train, val"),
        ("batch_size=0", "batch_size is 0"),
        ("worker=3", "worker"),
        ("loader=torch", "the doctor tests DALI's decoding; choose loader=dali"),
        ("loader.decode=none", "loader.decode is 'none'"),
    ],
)
def test_a_mistake_of_the_user_is_no_finding(doctor, argument, message):
    done = doctor(argument)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and message in line


MODULE = ["-m", "dali_pipes.cli", "doctor"]
# what the installed command does
COMMAND = ["-c", "from dali_pipes.cli import main; main()", "doctor"]


def process(*arguments, cwd, program=MODULE, **options):
    command = [sys.executable, *program, *arguments, f"data.cache_dir={cwd}"]
    environment = {**os.environ, "PYTHONPATH": f"{cwd}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment, **options
    )


@pytest.mark.slow
def test_a_machine_that_is_set_up_wrongly(tmp_path):
    """A second CuPy of another CUDA, one that crashes, a DALI that cannot be loaded."""
    (tmp_path / "cupy_cuda13x-14.2.0.dist-info").mkdir()
    (tmp_path / "cupy_cuda13x-14.2.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: cupy-cuda13x\nVersion: 14.2.0\n"
    )
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy/__init__.py").write_text("import os\nos.abort()\n")
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia/__init__.py").write_text(
        "raise ImportError('libnvjpeg.so.12: cannot open shared object file')\n"
    )
    done = process(cwd=tmp_path)
    found, _ = findings(done)
    assert done.returncode == 1
    assert (
        found["software", "one CUDA"]["status"] == "failed"
        and "cupy-cuda13x 13" in found["software", "one CUDA"]["found"]
    )
    assert (
        found["software", "DALI"]["status"] == "failed"
        and "libnvjpeg.so.12" in found["software", "DALI"]["found"]
    )
    assert (
        found["software", "nvImageCodec"]["status"] == "warning"
        and "libnvjpeg" in found["software", "nvImageCodec"]["found"]
    )
    assert (
        found["software", "CuPy"]["status"] == "warning"
        and "SIGABRT" in found["software", "CuPy"]["found"]
    )
    assert "DALI (software)" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("program", [MODULE, COMMAND], ids=["module", "command"])
def test_a_package_that_cannot_be_imported_is_one_line(tmp_path, program):
    (tmp_path / "torch.py").write_text(
        "raise ImportError('libcudnn.so.9: cannot open shared object file')\n"
    )
    done = process(cwd=tmp_path, program=program)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "libcudnn.so.9" in done.stderr and "bash scripts/setup.sh" in done.stderr
