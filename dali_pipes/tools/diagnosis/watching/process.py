"""dali-pipes diagnose -- train.py ARGS: runs a user's program until its loop has been measured.

`diagnose_program` starts the program with watched.py around it, which answers through a pipe with
lines of JSON: what it does, the loop it found, and the diagnosis or an error.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from dali_pipes.errors import DaliPipesError
from dali_pipes.system.child import Guard
from dali_pipes.system.files import make_run_folder
from dali_pipes.tools.diagnosis.watching.answers import LIMIT_SIGNAL
from dali_pipes.tools.diagnosis.watching.words import read_program, say

# the folder of -c leaves sys.path, where the program's own folder comes; this package goes to its
# end, so that it hides none of the program's modules
_START = (
    "import sys; sys.path.pop(0); sys.path.append({root!r}); "
    "from dali_pipes.tools.diagnosis.watching.watched import main; main()"
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


def diagnose_program(
    words: Sequence[str], *, seconds: float, rounds: int, cold: bool, limit: float
) -> dict[str, Any]:
    """Runs the program until its loop has been measured, prints the report to stderr, and returns
    it.

    Args:
        limit: seconds after which the program is ended, whatever it does.

    Raises:
        ConfigError: no program that can be watched.
        ProgramError: no loop was found, or it could not be measured.
        KeyboardInterrupt: Ctrl-C; what was found until then has been printed.
    """
    program = read_program(words)
    say(f"running {' '.join(words)} until its training loop begins")

    start, answers, interrupted = time.time(), dict[str, Any](), False
    # the program's faulthandler writes here where it is at the limit, even inside a call into C
    with (
        tempfile.NamedTemporaryFile("r") as dump,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as aside,
    ):
        job = {
            "program": program.words,
            "module": program.is_module,
            "seconds": seconds,
            "rounds": rounds,
            "cold": cold,
        }
        job |= {"start": start, "dump": dump.name, "width": 120, "aside": aside}

        with _start_program(job, program.flags) as child:
            try:
                _collect(child, answers, start + limit)
            except KeyboardInterrupt:
                interrupted = True
                say("interrupted; what has been found so far:")
                # the deadline is now, so the program is asked for what it has
                _collect(child, answers, time.time())
        # faulthandler writes the innermost frame first
        stack = [
            line.strip() for line in dump.read().splitlines() if line.strip().startswith("File")
        ][:1]

    if answers.get("trace"):
        print(answers["trace"], end="", file=sys.stderr)
    if "diagnosis" in answers:
        print(answers["text"], answers.get("explained", ""), sep="", end="", file=sys.stderr)
        if not interrupted:
            before = {"seconds_before_loop": answers["seconds"], "loops_before": answers["before"]}
            return {"program": list(words), **before, **answers["diagnosis"]}

    where = f"it was at {stack[0]}" if stack else "it did not say where it was"
    if interrupted:
        if "diagnosis" not in answers:
            say(answers.get("error", where))
        raise KeyboardInterrupt

    over = f"within limit={limit:g} s " if time.time() - start >= limit else ""
    why = answers.get(
        "error",
        f"{where}, and was ended" if over else f"{child.end_in_words()}, and no word",
    )
    raise ProgramError(
        f"{' '.join(words)} was not diagnosed {over}({why})", answers.get("status", 1)
    )


def save_diagnosis(result: dict[str, Any], out: Path, options: Sequence[str]) -> dict[str, Any]:
    """Writes the result with its provenance into a new folder in `out`, says where, and returns it.

    Args:
        options: those of diagnose, as they were given.
    """
    from dali_pipes.system.provenance import provenance
    from dali_pipes.system.stdout import save_result

    result = result | {"provenance": provenance({"program": result["program"]}, list(options))}
    say(f"all figures: {save_result(make_run_folder(out), result)}")
    return result


def _collect(child: ProgramProcess, answers: dict[str, Any], deadline: float) -> None:
    """Adds what the program sends to `answers` until it ends, and says what it does.

    At the deadline the program is asked for what it has.
    """
    for answer in child.answers(deadline):
        answers |= answer
        if "doing" in answer:
            say(answer["doing"])
        elif "seconds" in answer:
            earlier = "".join(f"; before it {loop}" for loop in answer["before"])
            say(f"the loop at {answer['loop']} began after {answer['seconds']:.1f} s{earlier}")


@contextlib.contextmanager
def _start_program(job: Mapping[str, Any], flags: Sequence[str]) -> Iterator[ProgramProcess]:
    """Starts the process. At the end of the block it is ended with all its descendants; if this
    process is killed before, its group is ended.

    Args:
        job: what `watched.main` reads, as JSON, from the first word of its command line, with the
            pipe in it.
        flags: options of python.
    """
    reading, writing = os.pipe()
    code = _START.format(root=str(Path(__file__).resolve().parents[4]))

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
