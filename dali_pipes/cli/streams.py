"""The standard streams of the command: closed ones, broken pipes and full disks.

A job whose results are files ends well though nobody takes what it prints. Where the output itself
is the result, the program ends in one line, as other programs of Unix do.
"""

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, cast

# what prints its result, and has no other; `eval_only` is of train
_PRINTED = ("compare", "scan", "doctor")
_PRINTED_BY_WORD = ("eval_only=true", "eval_only=True", "eval_only=1")


class Printed(io.TextIOWrapper):
    """A text stream that goes nowhere once its file takes nothing.

    Args:
        stream: what it replaces, whose buffer it takes over.
        must: whether the output is the result.

    Attributes:
        lost: why the result could not be written; None: it was, or need not be.

    Raises:
        BrokenPipeError: as the result is written, if its reader has gone.
    """

    def __init__(self, stream: Any, must: bool):
        form = {"encoding": stream.encoding, "errors": stream.errors}
        buffered = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
        self._must = must
        self.lost: str | None = None
        super().__init__(stream.detach(), **form, **buffered)

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
        return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        # the buffer is flushed again at exit, and must find a file that takes it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        super().flush()
        if self._must and isinstance(error, BrokenPipeError):
            raise error
        if self._must:
            reason = "it is closed" if error.errno == errno.EBADF else str(error.strerror).lower()
            self.lost = f"the result could not be written to stdout: {reason}"


def open_streams(words: Sequence[str]) -> Printed:
    """Makes the three streams such that whatever prints can print; returns stdout.

    Args:
        words: the command line: what it prints decides whether stdout must take it.
    """
    # Closed ones, from 0 on: the system gives the lowest number, and would give it to the next file
    # that is opened. Nothing can be written into what is open for reading only.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)

    streams = {"stdin": (0, "r"), "stdout": (1, "w"), "stderr": (2, "w")}
    for name, (number, mode) in streams.items():
        if getattr(sys, name) is None:
            opened = os.fdopen(number, f"{mode}b", closefd=False)
            setattr(sys, name, io.TextIOWrapper(cast(Any, opened), "utf-8", "backslashreplace"))

    sys.stdout = out = Printed(sys.stdout, must=prints_its_result(words))
    sys.stderr = Printed(sys.stderr, must=False)
    return out


def prints_its_result(words: Sequence[str]) -> bool:
    """Returns whether what a command line prints is all that comes of it."""
    job, *options = words or ["--help"]
    if job in ("diagnose", "migrate") and "--" in options:
        return False  # the words behind it are those of a program of the user's
    flags = [each for each in options if each.startswith("-") and each not in ("-m", "--multirun")]
    given = [each for each in options if each in _PRINTED_BY_WORD]
    return job.startswith("-") or job in (*_PRINTED, "help") or bool(flags or given)
