"""What the process of a user's program tells its parent: lines of JSON through a pipe.

`Answers.send` sends what happens; `Answers.fail` and `Answers.end` also end the process.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
from typing import IO, Any, NoReturn

# The parent sends it at the limit. SIGUSR1 and SIGUSR2 are left to the program, such as for SLURM's
# requeueing.
LIMIT_SIGNAL = signal.SIGRTMIN + 5


class Answers:
    """The end of the pipe that the program's process writes to.

    Args:
        stream: where the parent process reads lines of JSON.
    """

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def send(self, answer: dict[str, Any]) -> None:
        # not print, which programs replace: MAE's and DINO's writes nothing, or the time as well
        self._stream.write(json.dumps(answer) + "\n")
        self._stream.flush()

    def fail(self, message: str, trace: str = "", status: int = 1) -> NoReturn:
        self.send({"error": message, "trace": trace, "status": status})
        self.end(status)

    def end(self, status: int) -> NoReturn:
        """Ends the process and its workers at once, without its atexit functions, finally blocks
        and threads: nothing that the program would do later may happen.
        """
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()

        for process in multiprocessing.active_children():
            process.terminate()
        os._exit(status)
