import os
import time

import psutil
import pytest
from gpu_check.bench import Bench, PartError
from gpu_check.config import GpuCheckConfig


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def make(program):
        (tmp_path / "x_program.py").write_text(program)
        return Bench(GpuCheckConfig(), "m.parquet", "/images", tmp_path, 2)

    return make


def test_the_last_line_of_stdout_is_the_result(bench, tmp_path):
    program = (
        "import sys\nprint('chatter', file=sys.stderr)\nprint('more')\nprint('{\"a\": "
        "1}')\nsys.exit(2)"
    )
    assert bench(program).program("part", ["x_program", "job"], ["b=2"], 20, statuses=(0, 2)) == {
        "a": 1
    }
    log = (tmp_path / "part.log").read_text()
    assert "-m x_program job data.train=m.parquet b=2" in log and "chatter" in log


@pytest.mark.parametrize(
    ("visible", "seen"),
    [(None, "0"), ("3,1", "3"), ("GPU-1a,GPU-2b", "GPU-1a"), ("5", "5"), ("", "")],
)
def test_a_program_sees_one_gpu(bench, monkeypatch, visible, seen):
    """Two jobs at once take a GPU each where there are two, and the check is of two on one."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    program = "import json, os\nprint(json.dumps(os.environ['CUDA_VISIBLE_DEVICES']))"
    assert bench(program).program("part", ["x_program"], [], 20) == seen


@pytest.mark.parametrize(
    "program",
    ["import sys; sys.exit('no such thing')", "print('')", "raise ValueError('no such thing')"],
)
def test_a_program_that_fails_is_reported_with_its_last_words(bench, program):
    with pytest.raises(PartError, match=r"x_program ended with status [01]:.*") as error:
        bench(program).program("part", ["x_program"], [], 20)
    assert "no such thing" in str(error.value) or "print" in program


@pytest.mark.slow
def test_what_takes_too_long_is_ended_with_all_that_it_started(bench, tmp_path):
    """Also what sleeps, stopped by a signal."""
    program = (
        "import os, signal, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '100'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "child.send_signal(signal.SIGSTOP)\n"
        "time.sleep(100)"
    )
    with pytest.raises(PartError, match=r"ended after 3 s; details/part\.log"):
        bench(program).program("part", ["x_program"], [], 3)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
