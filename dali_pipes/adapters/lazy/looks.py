"""Which line of a program looked at pixels."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dali_pipes.adapters.lazy.state import PROCESS, STATE, Look

_HERE = str(Path(__file__).resolve().parent)
_LIBRARIES = ("/site-packages/", "/lib/python3", "<frozen", "<string", _HERE)  # parts of file names


class LooksAtValues(Exception):
    """A function looks at pixels that are not to be made (dry_run.py)."""


def blame() -> None:
    """Notes which line of the program looks at pixels, and by which function: `PROCESS.seen`.

    Raises:
        LooksAtValues: in a dry run.
    """
    if STATE.is_dry:
        STATE.has_looked = True
        raise LooksAtValues
    frame, inner = sys._getframe(1), None
    while frame and any(part in frame.f_code.co_filename for part in _LIBRARIES):
        file = frame.f_code.co_filename
        if inner is None and not any(part in file for part in (_HERE, "_pytree", "contextlib")):
            inner = frame
        frame = frame.f_back  # type: ignore[assignment]

    place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "?"
    where = frame.f_code.co_qualname if frame else "?"
    PROCESS.look = Look(place, where, inner.f_code.co_qualname if inner else where)
    PROCESS.seen[PROCESS.look] += 1


@contextmanager
def looking() -> Iterator[None]:
    """Notes the same of what is made in it, and what that costs: `PROCESS.seconds`."""
    blame()
    look, start = PROCESS.look, time.thread_time()
    try:
        yield
    finally:
        if look is not None:
            PROCESS.seconds[look] += time.thread_time() - start
