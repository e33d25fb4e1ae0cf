"""What becomes of checks that crash or raise, and of those that need a GPU."""

import pytest

from dali_pipes.tools.doctor.report import Finding, ok
from dali_pipes.tools.doctor.run import Check, examine

MODULE = """
import ctypes
from dali_pipes.tools.doctor.report import ok

def crashes(): ctypes.string_at(0)
def fine(): return ok("the same elsewhere")
"""


def wrong():
    raise FileNotFoundError(2, "No such file or directory", "/dev/shm")


@pytest.mark.slow
def test_the_doctor_survives_and_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "planted_check.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    checks = [
        Check(
            group="a", name="crash", look="planted_check:crashes", broken="failed", remedy="fix it"
        ),
        Check(group="a", name="raise", look=wrong),
        Check(group="b", name="after", look=lambda: ok("all of it")),
        Check(group="b", name="in a process", look="planted_check:fine"),
    ]
    crash, error, after, other = (line.finding for line in examine(checks, 60))
    assert crash.status == "failed" and "SIGSEGV" in crash.found and crash.remedy == "fix it"
    assert (
        error.status == "warning"
        and "/dev/shm" in error.found
        and "could not be checked" in error.remedy
    )
    assert after.status == "ok" and other == ok("the same elsewhere")


@pytest.mark.parametrize("gate", ["ok", "failed"])
def test_what_needs_a_gpu_is_left_out_where_there_is_none(gate):
    checks = [
        Check(
            group="GPU",
            name="gate",
            look=lambda: Finding(gate, "x", "y" * (gate == "failed")),
            gate=True,
        ),
        Check(group="GPU", name="decode", look=lambda: Finding("ok", "decoded"), needs_gpu=True),
        Check(group="GPU", name="other", look=lambda: Finding("ok", "looked at")),
    ]
    assert [line.check for line in examine(checks, 1)] == (
        ["gate", "decode", "other"] if gate == "ok" else ["gate", "other"]
    )
