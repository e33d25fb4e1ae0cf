"""A measuring program that is killed leaves none of its suspended processes behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SUPPORT = Path(__file__).parents[1] / "support"


def is_left(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (signal.SIGKILL, "fork"),
        (signal.SIGHUP, "fork"),
        (signal.SIGKILL, "spawn"),
        (signal.SIGTERM, "forkserver"),
    ],
)
def test_no_process_outlives_a_parent_that_is_killed(number, kind):
    environment = {**os.environ, "PYTHONPATH": f"{SUPPORT}:{Path(__file__).parents[2]}"}
    command = [sys.executable, SUPPORT / "suspending_parent.py", kind]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, text=True
    ) as parent:
        pids = json.loads(parent.stdout.readline())
        assert len(pids) >= 3, "the child, its worker, and what guards them"
        parent.send_signal(number)
    try:
        while any(map(is_left, pids)):  # pytest's time limit ends it
            time.sleep(0.05)
    finally:
        for pid in filter(is_left, pids):
            os.kill(pid, signal.SIGKILL)
