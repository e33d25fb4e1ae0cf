"""Locks that processes hold by a file, on any machine that sees it."""

import fcntl
import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)

_PAUSE_S = 0.1


@contextmanager
def locked(file: Path, shared: bool = False, wait_s: float = math.inf) -> Iterator[None]:
    """Holds a lock within the `with` block. It ends with the process, whatever ends that.

    The file is made for the lock, and removed at the end; one that a killed process has left locks
    nothing. It is opened for writing, since NFS refuses an exclusive lock of what is open for
    reading only (flock(2), "NFS details"), such as a folder.

    Args:
        file: in a folder that is there.
        shared: whether others may hold it too if they share it.
        wait_s: for how many seconds another process may keep it.

    Raises:
        BlockingIOError: another process kept it.
    """
    number = _open_locked(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, wait_s)
    try:
        yield
    finally:
        with suppress(OSError):
            # the last one removes the file, while nobody else can have it
            if _try(number, fcntl.LOCK_EX):
                file.unlink(missing_ok=True)
            # a child that was forked keeps the file open, and would keep the lock
            fcntl.flock(number, fcntl.LOCK_UN)
        os.close(number)


def _open_locked(file: Path, how: int, wait_s: float) -> int:
    end = time.monotonic() + wait_s
    while True:
        number = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if _lock(number, how, file) and _is_same(number, file):
                return number
        except BaseException:
            os.close(number)
            raise
        os.close(number)

        if time.monotonic() > end:
            raise BlockingIOError(f"another process has locked {file}")
        time.sleep(min(_PAUSE_S, wait_s))


def _lock(number: int, how: int, file: Path) -> bool:
    """Whether it is locked now, or cannot be."""
    try:
        return _try(number, how)
    except OSError as error:
        log.warning(
            "%s: the file system has no locks (%s); see to it that one process at a time writes "
            "in this folder",
            file.parent,
            error.strerror,
        )
        return True


def _try(number: int, how: int) -> bool:
    try:
        fcntl.flock(number, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(number: int, file: Path) -> bool:
    """Whether the file has not been removed by the one who had locked it before."""
    try:
        return os.path.samestat(os.fstat(number), os.stat(file))
    except FileNotFoundError:
        return False
