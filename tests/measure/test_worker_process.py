import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dali_pipes.measure.worker_process import ArmError, MeasuringProcess

SUPPORT = str(Path(__file__).parents[1] / "support")


@pytest.fixture(autouse=True)
def worker_can_be_found(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", SUPPORT, prepend=":")


def test_cores_and_threads_are_those_of_the_budget():
    one = {min(os.sched_getaffinity(0))}
    before = os.sched_getaffinity(0)
    with MeasuringProcess("worker:run", {"do": "environment"}, "arm x", one) as process:
        assert process.answer() == {"cpus": sorted(one), "threads": "1", "gpu": None}
    assert os.sched_getaffinity(0) == before
    with MeasuringProcess("worker:run", {"do": "environment"}, "arm x", one, gpu="3") as process:
        assert process.answer()["gpu"] == "3"


def test_a_failure_is_that_of_an_arm():
    with (
        MeasuringProcess(
            "worker:run", {"do": "raise"}, "arm x", os.sched_getaffinity(0)
        ) as process,
        pytest.raises(ArmError, match="arm x: the file is broken"),
    ):
        process.answer()


def test_sigterm_ends_a_program_and_its_suspended_processes():
    code = """
import os
from dali_pipes.measure.worker_process import MeasuringProcess, exit_on_signals
process = MeasuringProcess("worker:run", {"do": "wait"}, "arm x", os.sched_getaffinity(0))
with exit_on_signals(), process:
    process.answer()
    process.sleep()
    print(process.pid, flush=True)
    process.answer()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as program:
        pid = int(program.stdout.readline())
        program.send_signal(signal.SIGTERM)
    assert program.returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
