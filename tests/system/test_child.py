"""Functions that crash, hang, raise or print, each in a process of its own; and what both sides say
to each other.
"""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from dali_pipes.system.child import Child, ChildError, in_child

MODULE = """
import ctypes, os, sys, time

def fine(one, two):
    print("a library says hello")
    os.system("echo and so does one in C")
    return {one: two}

def crashes():
    print("about to read address 0", file=sys.stderr, flush=True)
    ctypes.string_at(0)

def leaves(): os._exit(3)
def hangs(): time.sleep(600)

def replaces_print():
    import builtins
    builtins.print = lambda *values, **options: None  # as programs do on other ranks than 0
    return "said"

def raises():
    raise RuntimeError("first line" + chr(10) + "second line")

def says_much():
    print("first", "second", sep=chr(10), file=sys.stderr, flush=True)
    os.abort()

def crashes_at_its_end():
    import atexit
    atexit.register(os.abort)
    return "found before that"
"""


@pytest.fixture(autouse=True)
def modules_can_be_found(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text(MODULE)
    monkeypatch.setenv(
        "PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[1] / 'support'}", prepend=":"
    )


def child(do, limit_s=60):
    return Child("worker:run", {"do": do}, limit_s)


def test_a_value_comes_back_whatever_print_is():
    assert in_child("planted:replaces_print", 60).value == "said"


def test_a_value_comes_back_whatever_libraries_print():
    answer = in_child("planted:fine", 60, "a", [1, 2])
    assert answer.value == {"a": [1, 2]} and set(answer.output.splitlines()) == {
        "a library says hello",
        "and so does one in C",
    }


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "planted:crashes",
            "its process ended with SIGSEGV; the last it wrote: about to read address 0",
        ),
        ("planted:says_much", "its process ended with SIGABRT; the last it wrote: first second"),
        ("planted:leaves", "its process ended with status 3"),
        ("planted:raises", "RuntimeError: first line"),
        (
            "planted:is_not_there",
            "AttributeError: module 'planted' has no attribute 'is_not_there'",
        ),
        ("no_such_library:check", "ModuleNotFoundError: No module named 'no_such_library'"),
    ],
)
def test_what_became_of_it_is_reported(function, message):
    with pytest.raises(ChildError) as caught:
        in_child(function, 60)
    assert str(caught.value) == message


@pytest.mark.slow
def test_one_that_hangs_is_ended():
    start = time.monotonic()
    with pytest.raises(ChildError, match="gave no answer for 1 s and was ended"):
        in_child("planted:hangs", 1)
    assert time.monotonic() - start < 15


def test_what_was_found_before_a_crash_at_the_end_counts():
    assert in_child("planted:crashes_at_its_end", 60).value == "found before that"


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
    assert process._process.returncode == 0 and time.monotonic() - start < 15


def test_a_worker_can_be_forked_while_orders_are_waited_for():
    with child("fork") as process:
        assert process.answer() == {"exitcode": 0}


def test_workers_sleep_with_it_and_end_with_it():
    with child("workers") as process:
        family = [psutil.Process(pid) for pid in process.answer()["pids"]]
        process.sleep()
        assert become(psutil.STATUS_STOPPED, family)
    assert become(psutil.STATUS_ZOMBIE, family)


def become(status, processes):
    """Whether all of them get there within a minute."""
    deadline = time.monotonic() + 60
    while {state(each) for each in processes} != {status} and time.monotonic() < deadline:
        time.sleep(0.01)
    return {state(each) for each in processes} == {status}


def state(process):
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("do", "message"),
    [
        ("raise", "^the file is broken$"),
        ("crash", r"(?s)^its process ended with status 1; the last it wrote:\n  last words$"),
    ],
)
def test_a_failure_is_reported_with_its_reason(do, message):
    with child(do) as process, pytest.raises(ChildError, match=message):
        process.answer()


def test_a_module_that_is_not_there_is_named():
    with (
        Child("no_such_module:run", {}, 60) as process,
        pytest.raises(ChildError, match="No module named 'no_such_module'"),
    ):
        process.answer()


@pytest.mark.slow
def test_a_process_that_hangs_is_ended():
    with (
        child("sleep", limit_s=2) as process,
        pytest.raises(ChildError, match="gave no answer for 2 s"),
    ):
        process.answer()


@pytest.mark.slow
def test_nothing_is_left_running_when_waiting_is_interrupted():
    """Ctrl-C while an answer is waited for."""
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), child("sleep") as process:
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        process.answer()
    assert process._process.poll() is not None and time.monotonic() - start < 15
    assert not process._reader.is_alive()
