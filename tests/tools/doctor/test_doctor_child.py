"""Checks that crash, hang, raise or chatter, each in a process of its own."""

import time

import pytest

from dali_pipes.system.child import ChildError, in_child
from dali_pipes.tools.doctor.report import Finding
from dali_pipes.tools.doctor.run import Check, examine

MODULE = """
import ctypes, os, time
from dali_pipes.tools.doctor.report import ok

def fine():
    print("a library says hello")
    os.system("echo and so does one in C")
    return ok("all of it")

def crashes():
    print("about to read address 0", file=__import__("sys").stderr, flush=True)
    ctypes.string_at(0)

def leaves(): os._exit(3)
def hangs(): time.sleep(600)

def raises():
    raise RuntimeError("first line" + chr(10) + "second line")

def crashes_at_its_end():
    import atexit
    atexit.register(os.abort)
    return ok("found before that")
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    (tmp_path / "planted_checks.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return lambda name: f"planted_checks:{name}"


def test_a_finding_comes_back_whatever_libraries_print(planted):
    assert Finding(**in_child(planted("fine"), 60).value) == Finding("ok", "all of it")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("crashes", "crashed: its process ended with SIGSEGV; about to read address 0"),
        ("leaves", "crashed: its process ended with status 3"),
        ("raises", "RuntimeError: first line"),
        ("is_not_there", "AttributeError: module 'planted_checks' has no attribute 'is_not_there'"),
    ],
)
def test_what_became_of_it_is_told(planted, name, told):
    with pytest.raises(ChildError) as caught:
        in_child(planted(name), 60)
    assert str(caught.value) == told


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(ChildError, match="ModuleNotFoundError: No module named 'no_such_library'"):
        in_child("no_such_library:check", 60)


def test_one_that_hangs_is_ended(planted):
    start = time.monotonic()
    with pytest.raises(ChildError, match="hangs: no answer within limit_s=1 seconds"):
        in_child(planted("hangs"), 1)
    assert time.monotonic() - start < 30


def test_what_was_found_before_a_crash_at_the_end_counts(planted):
    assert Finding(**in_child(planted("crashes_at_its_end"), 60).value) == Finding("ok", "found before that")


def wrong():
    raise FileNotFoundError(2, "No such file or directory", "/dev/shm")


def test_the_doctor_survives_and_says_what_to_do(planted):
    checks = [
        Check(group="a", name="crash", look=planted("crashes"), broken="failed", remedy="fix it"),
        Check(group="a", name="raise", look=wrong),
        Check(group="b", name="after", look=planted("fine")),
    ]
    crash, error, after = (line.finding for line in examine(checks, 60))
    assert crash.status == "failed" and "SIGSEGV" in crash.found and crash.remedy == "fix it"
    assert error.status == "warning" and "/dev/shm" in error.found and "could not be checked" in error.remedy
    assert after.status == "ok"


@pytest.mark.parametrize("gate", ["ok", "failed"])
def test_what_needs_a_gpu_is_left_out_where_there_is_none(gate):
    checks = [
        Check(group="GPU", name="gate", look=lambda: Finding(gate, "x", "y" * (gate == "failed")), gate=True),
        Check(group="GPU", name="decode", look=lambda: Finding("ok", "decoded"), needs_gpu=True),
        Check(group="GPU", name="other", look=lambda: Finding("ok", "looked at")),
    ]
    assert [line.check for line in examine(checks, 1)] == (["gate", "decode", "other"] if gate == "ok" else ["gate", "other"])
