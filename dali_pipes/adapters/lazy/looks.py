"""Which line of a program looked at pixels, and what would let it wait."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dali_pipes.adapters.lazy.state import PROCESS, STATE, Look

_HERE = str(Path(__file__).resolve().parent)
_LIBRARIES = ("/site-packages/", "/lib/python3", "<frozen", "<string", _HERE)  # parts of file names

# functions of libraries that look at pixels, as regular expressions of their last name
_ONCE = "what it finds could be computed once"
_LATER = "it could be a step for finished batches"
_HINTS = {
    r"mean|std|var|sum|hist\w*|get(extrema|pixel|bbox|colors)|max|min|any|all|item|func": _ONCE,
    r"\w*([bB]lur|[fF]ilter|clahe|CLAHE|[nN]oise|compress\w*|encode_decode|[dD]istort\w*)": _LATER,
    r"paste|putpixel|text|line|rectangle|ellipse|__setitem__": _LATER,
}


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


def hint(look: Look) -> str:
    """What would let the pictures wait, in a sentence."""
    if look.where == look.by:
        return f"{_ONCE}, what it changes could be a step for finished batches"
    name = look.by.rpartition(".")[2]
    return next(
        (hint for pattern, hint in _HINTS.items() if re.fullmatch(pattern, name)),
        f"dali_pipes would have to know {look.by}",
    )
