"""The standard streams of the command: closed ones, readers that leave, and full disks.

A job goes on when nobody takes what it prints, since its files are still to be written. That
something was lost is said at its end.
"""

import os
import sys
from typing import Any, TextIO


def open_closed_streams() -> None:
    """Opens what the shell has closed (`>&-`) on the null device, as Go and Rust do.

    Otherwise `sys.stdout` is None, and the number of the stream goes to the next file that is
    opened, which then gets what libraries in C print.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # the system gives the lowest number that is free, which is this one
            os.open(os.devnull, os.O_WRONLY if number else os.O_RDONLY)
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


class LastingStream:
    """A text stream that goes nowhere once its file takes nothing more.

    Attributes:
        lost: the error by which the first text was lost; None while nothing was.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.lost = self.lost or error
        # what is left in the buffer is flushed once more, at exit at the latest, and must find a
        # file that takes it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
