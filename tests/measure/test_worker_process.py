import os
import signal
import threading
import time
from pathlib import Path

import pytest

from dali_pipes.measure.worker_process import ArmError, FreshProcess


@pytest.fixture(autouse=True)
def child_can_be_found(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))


def child(do, cpus=None, **options):
    return FreshProcess("worker", {"do": do}, "arm x", cpus or os.sched_getaffinity(0), **options)


def test_cores_and_threads_are_those_of_the_budget():
    one = {min(os.sched_getaffinity(0))}
    before = os.sched_getaffinity(0)
    with child("environment", one) as process:
        assert process.answer() == {"cpus": sorted(one), "threads": "1"}
    assert os.sched_getaffinity(0) == before


def test_go_and_stop():
    with child("wait") as process:
        assert process.answer() == {"ready": True}
        process.go()
        assert process.answer() == {"gone": True}
    assert process._process.returncode == 0


def test_a_process_that_is_left_before_go_ends_itself():
    start = time.monotonic()
    with child("wait") as process:
        process.answer()
    assert process._process.returncode == 0 and time.monotonic() - start < 20


def test_a_worker_can_be_forked_while_orders_are_waited_for():
    with child("fork") as process:
        assert process.answer() == {"exitcode": 0}


@pytest.mark.parametrize(
    ("do", "told"),
    [
        ("raise", "arm x: the file is broken"),
        ("crash", r"(?s)arm x: its process ended with status 1.*last words"),
    ],
)
def test_a_failure_is_told_with_its_reason(do, told):
    with child(do) as process, pytest.raises(ArmError, match=told):
        process.answer()


def test_a_process_that_hangs_is_ended():
    with child("sleep", patience_s=3) as process, pytest.raises(ArmError, match="gave no answer for 3 s"):
        process.answer()


def test_nothing_is_left_running_when_waiting_is_interrupted():
    """Ctrl-C while an answer is waited for; a timer that lived on would keep the program from ending."""
    with pytest.raises(KeyboardInterrupt), child("sleep") as process:
        threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()
        process.answer()
    assert process._process.poll() is not None
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_no_such_module():
    process = FreshProcess("no_such_module", {}, "arm x", os.sched_getaffinity(0))
    with process, pytest.raises(ArmError, match="No module named no_such_module"):
        process.answer()
