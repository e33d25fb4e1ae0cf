"""Starts a user's program in a process of its own, and ends it with all its descendants.

The process calls our function with the job, which runs the program and answers through a pipe
with lines of JSON (`Answers`).
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from dali_pipes.errors import DaliPipesError
from dali_pipes.system.child import Guard
from dali_pipes.system.program.answers import LIMIT_SIGNAL

# the folder of -c leaves sys.path, where the program's own folder comes; this package goes to its
# end, so that it hides none of the program's modules
_START = (
    "import sys; sys.path.pop(0); sys.path.append({root!r}); from {module} import {name}; {name}()"
)
_GRACE_S = 5.0  # time to answer for a program that has reached its limit, or was interrupted


class ProgramError(DaliPipesError):
    """A program that did not come to what was to be examined; the text says why.

    Attributes:
        status: the program's own, if it failed by itself.
    """

    def __init__(self, message: str, status: int = 1):
        super().__init__(message)
        self.status = status


class ProgramProcess:
    """The process of the program, and the pipe of its answers."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int):
        self.process, self._reading, self._rest = process, reading, b""

    def answers(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Yields the program's answers until its end. At the deadline it is asked for what it has.

        Its workers hold the pipe open for longer than it lives, so the end of the process is the
        end.
        """
        asked = False
        with selectors.DefaultSelector() as selector:
            selector.register(self._reading, selectors.EVENT_READ)
            while True:
                ended = self.process.poll() is not None
                # once more after the end: what it wrote last may still be in the pipe
                while selector.select(0.0 if ended else 0.1):
                    data = os.read(self._reading, 65536)
                    if not data:
                        selector.unregister(self._reading)
                        break
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    yield from map(json.loads, lines)

                if ended or (asked and time.time() > deadline + _GRACE_S):
                    return
                # with nothing left to select on, there is no wait in the next turn
                if not selector.get_map():
                    time.sleep(0.05)

                if not asked and time.time() >= deadline:
                    self.process.send_signal(LIMIT_SIGNAL)
                    asked = True

    def end_in_words(self) -> str:
        """Returns how the process ended."""
        status = self.process.returncode
        return (
            f"it was ended by {signal.Signals(-status).name}"
            if status < 0
            else f"it ended with status {status}"
        )


@contextlib.contextmanager
def start_program(
    function: str, job: Mapping[str, Any], flags: Sequence[str]
) -> Iterator[ProgramProcess]:
    """Starts the process. At the end of the block it is ended with all its descendants; if this
    process is killed before, its group is ended.

    Args:
        function: "module:function" of dali_pipes, which reads the job, and the pipe in it, as JSON
            from the first word of its command line.
        flags: options of python.
    """
    reading, writing = os.pipe()
    module, name = function.split(":")
    code = _START.format(root=str(Path(__file__).resolve().parents[3]), module=module, name=name)

    process = subprocess.Popen(
        [sys.executable, *flags, "-c", code, json.dumps({**job, "pipe": writing})],
        # stdout is for the result alone; a session of its own can be killed as a group
        stdin=subprocess.DEVNULL,
        stdout=sys.__stderr__,
        pass_fds=(writing,),
        start_new_session=True,
    )

    # this process must not hold the writing end, or the pipe would never end
    guard = Guard(process.pid)
    os.close(writing)

    try:
        yield ProgramProcess(process, reading)
    finally:
        descendants = list[psutil.Process]()
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for descendant in descendants:  # those in sessions of their own are not in the group
            with contextlib.suppress(psutil.NoSuchProcess):
                descendant.kill()
        process.wait()
        guard.dismiss()
        os.close(reading)
