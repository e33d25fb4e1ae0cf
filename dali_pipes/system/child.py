"""Calls a function in a separate process, where a driver or a library may crash or hang.

`in_child` calls a function with some arguments and returns its value. `Child` is the process behind
it, for functions that answer several times: it calls them with a `Controller`, their end of the
protocol. The protocol is lines of JSON. The child reads its job, then one line for each "go", on
stdin, whose end tells it to end; its answers come on stdout. What libraries print goes to stderr,
into a file that is reported if the process crashes.

Nothing is left behind: a process ends itself when its stdin ends, is killed if it does not, and is
killed with all its descendants by a `Guard` if this process is killed.
"""

import contextlib
import json
import os
import pkgutil
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from dali_pipes.errors import DaliPipesError

# Waits for a line. If its stdin ends instead, this process has ended in whatever way, and the guard
# kills the group that it was given: also a suspended process, which reads nothing, and workers,
# however they were started. PR_SET_PDEATHSIG would not reach workers that are spawned, and would
# end a process with the thread that started it.
_GUARD = 'read -r line || kill -s KILL -- "-$0"'
# not `-m`, which would warn on stderr that the package has already imported this module
_START = f"from {__name__} import main; main()"
_ENDS_WITHIN_S = 20  # by itself
_KILLED_WITHIN_S = 5  # a process that hangs in the driver cannot even be killed


class ChildError(DaliPipesError):
    """The process gave no answer; the text says why. `output` is its whole stderr, if it ended."""

    def __init__(self, message: str, output: str = ""):
        super().__init__(message)
        self.output = output


class Guard:
    """Kills a process group if this process ends before `dismiss()`, in whatever way."""

    def __init__(self, group: int):
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # a signal to this process's group, as SIGHUP by a terminal, does not reach it
            start_new_session=True,
        )

    def dismiss(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(b"ended\n")


class Child:
    """A process that calls "module:function" with a Controller, and ends with the `with` block. The
    module is imported there only.

    If this process is killed, the child and all its descendants are killed as well, suspended or
    not.

    Args:
        job: a value that JSON can hold; the controller has it as `job`.
        limit_s: a process that gives no answer for this long is killed.
        environment: variables that differ from this process's.

    Attributes:
        output: its stderr and stdout, after the `with` block.
    """

    output = ""

    def __init__(
        self,
        function: str,
        job: Any,
        limit_s: float,
        environment: Mapping[str, str] | None = None,
    ):
        self._limit_s = limit_s
        # a file and not a pipe, which nobody would read; closed in __exit__
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            # -P: the working directory does not shadow modules
            [sys.executable, "-P", "-c", _START, function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        self._guard = Guard(self._process.pid)

        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._say(json.dumps(job))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def go(self) -> None:
        self._say("go")

    def answer(self) -> Any:
        """Waits for the next answer.

        Raises:
            ChildError: there is none; the text says why, and what the process wrote last.
        """
        try:
            line = self._answers.get(timeout=self._limit_s)
        except queue.Empty:
            self._signal(signal.SIGKILL)
            raise ChildError(f"gave no answer for {self._limit_s:g} s and was ended") from None

        if line:
            answer = json.loads(line)
            if "error" in answer:
                raise ChildError(answer["error"])
            return answer

        # an empty line: its answers have ended; what it writes to stderr last comes after that
        status = self._process.wait()
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        output = self._read_output()
        last = "".join(f"\n  {line}" for line in output.strip().splitlines()[-5:])
        raise ChildError(
            f"its process ended with {how}" + (f"; the last it wrote:{last}" if last else ""),
            output,
        )

    def sleep(self) -> None:
        """Suspends the process and all its descendants, so that they use no CPU."""
        # unlike SIGTSTP, SIGSTOP cannot be caught or ignored
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its descendants, even those that outlive it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _say(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended; answer() says why
            self._process.stdin.write(line + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def _read(self) -> None:
        """Reads all answers, in a thread: an unread one would keep the process from ending."""
        with self._process.stdout as lines:  # type: ignore[union-attr]
            for line in lines:
                self._answers.put(line)
        self._answers.put("")  # says that there are no more

    def _read_output(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the process's stdin, at which it ends itself and its workers; what is left after
        that is killed.
        """
        self.wake()  # a suspended process could not end itself
        if error is not None:
            self._signal(signal.SIGINT)  # Ctrl-C does not reach another session
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # type: ignore[union-attr]
        for seconds in (_ENDS_WITHIN_S, _KILLED_WITHIN_S):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            self._signal(signal.SIGKILL)  # also its workers, where it has ended and they have not

        self._guard.dismiss()
        self._reader.join(_KILLED_WITHIN_S)
        self.output = self._read_output()
        self._errors.close()


class Controller:
    """The child's view of the process that started it. A thread reads the commands, so that work
    goes on meanwhile.

    Attributes:
        job: what this process was given to do.
        stop: set when this process is to end.
    """

    def __init__(self, orders: IO[bytes], answers: IO[str]):
        self.stop = threading.Event()
        self._commands: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._orders, self._answers = orders, answers
        self.job = json.loads(orders.readline())
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while self._orders.readline():
            self._commands.put(True)

        # stdin has ended: this process is to end, and may hang with nobody left to kill it
        self.stop.set()
        self._commands.put(False)
        time.sleep(_ENDS_WITHIN_S)
        os._exit(1)

    @property
    def has_spoken(self) -> bool:
        """Whether `go` would answer at once."""
        return not self._commands.empty()

    def go(self) -> bool:
        """Waits for "go"; False if this process is to end."""
        said = self._commands.get()
        if not said:
            self._commands.put(False)  # for every later call as well
        return said

    def send(self, answer: Mapping[str, Any]) -> None:
        # not print, which programs replace: MAE's and DINO's writes nothing, or the time as well
        self._answers.write(json.dumps(answer, default=asdict) + "\n")
        self._answers.flush()


def main() -> None:
    """Runs the function that this process was started for."""
    # unbuffered: a buffer's lock, held by the thread that reads, would keep the process from ending
    with (
        open(os.dup(0), "rb", buffering=0) as orders,
        open(os.dup(1), "w") as answers,
        open(os.devnull) as nothing,
    ):
        # forked workers close their stdin, and would wait for the thread that reads it
        os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)  # what libraries print to stdout must not come between the answers

        controller = Controller(orders, answers)
        try:
            pkgutil.resolve_name(sys.argv[1])(controller)
        except DaliPipesError as error:
            controller.send({"error": error.summary})


class Answer(NamedTuple):
    """The function's return value, as JSON has it, and the process's stderr and stdout."""

    value: Any
    output: str


def in_child(function: str, limit_s: float, *arguments: Any) -> Answer:
    """Calls "module:function" in a process, with arguments that JSON can hold.

    Raises:
        ChildError: it raised, crashed, or gave no answer for `limit_s` seconds; in one line.
    """
    with Child(f"{__name__}:call", [function, *arguments], limit_s) as child:
        try:
            value = child.answer()["value"]
        except ChildError as error:
            raise ChildError(" ".join(str(error).split()), error.output) from None
    return Answer(value, child.output)


def call(controller: Controller) -> None:
    """What the process of `in_child` runs: sends the function's value, or its error in one line."""
    function, *arguments = controller.job
    try:
        controller.send({"value": pkgutil.resolve_name(function)(*arguments)})
    except Exception as error:
        controller.send({"error": explain(error)})


def explain(error: BaseException) -> str:
    """An exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
