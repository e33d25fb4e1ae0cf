"""A lock of a folder keeps other processes out on a file server too, and ends with its process."""

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from dali_pipes.data import demo
from dali_pipes.system import locks
from dali_pipes.system.locks import locked
from dali_pipes.tools.preparation.record import recorded
from dali_pipes.training.claim import Claim

HOLD = """
import sys, time
from pathlib import Path
from dali_pipes.system.locks import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(300)
"""


def hold_elsewhere(file):
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, file], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"locked\n"
    return process


def is_free(file, **options):
    try:
        with locked(file, wait_s=0, **options):
            return True
    except BlockingIOError:
        return False


def test_a_killed_process_leaves_a_file_and_no_lock(tmp_path):
    file = tmp_path / "lock"
    with hold_elsewhere(file) as process:
        assert not is_free(file) and not is_free(file, shared=True)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert file.exists()
        with locked(file, wait_s=10):
            assert not is_free(file)
    assert not any(tmp_path.iterdir())


def test_a_shared_lock_is_free_for_those_who_share_it(tmp_path):
    file = tmp_path / "lock"
    with locked(file, shared=True):
        assert is_free(file, shared=True) and not is_free(file)
        assert file.exists()  # the other one was not the last
    assert is_free(file) and not file.exists()


def test_one_thread_at_a_time_is_inside_though_each_removes_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "_PAUSE_S", 0.0001)
    inside, seen = [], []

    def go():
        for _ in range(50):
            with locked(tmp_path / "lock"):
                inside.append(1)
                seen.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 200 and not any(tmp_path.iterdir())


@pytest.fixture
def of_nfs(monkeypatch):
    """flock as NFS makes it of locks of ranges: an exclusive one needs what is open for writing."""
    flock = fcntl.flock

    def emulate(number, how):
        mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        if how & fcntl.LOCK_EX and mode == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(number, how)

    monkeypatch.setattr(fcntl, "flock", emulate)


def claim(folder):
    with Claim(folder, "out=DIR") as other:
        other.take()


def prepare(folder):
    with recorded(folder, {}):
        pass


@pytest.mark.usefixtures("of_nfs")
@pytest.mark.parametrize(
    ("lock", "use"),
    [(".lock", claim), (".unfinished_lock", prepare), (".unfinished.lock", prepare)],
)
def test_a_folder_on_nfs_has_one_run_at_a_time(tmp_path, lock, use, monkeypatch):
    monkeypatch.setattr("dali_pipes.training.claim._WAIT_S", 0.0)
    with locked(tmp_path / lock), pytest.raises(Exception, match="another run is writing there"):
        use(tmp_path)
    use(tmp_path)
    assert not [each.name for each in tmp_path.iterdir() if "lock" in each.name]


@pytest.mark.usefixtures("of_nfs")
def test_a_demo_set_on_nfs_is_made_by_one_rank(tmp_path):
    begun = []

    def make():
        with demo.prepare_set(tmp_path, "all") as missing:
            begun.append(missing)
            time.sleep(0.05)

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(begun) == [False, False, True]


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, caplog):
    def fail(number, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    with caplog.at_level(logging.WARNING), locked(tmp_path / "lock"):
        pass
    assert f"{tmp_path}: the file system has no locks (No locks available)" in caplog.text
