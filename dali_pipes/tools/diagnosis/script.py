"""dali-pipes diagnose -- train.py ARGS: a user's program in a process of its own, ended with all its descendants."""

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from dali_pipes.errors import ConfigError, DaliPipesError
from dali_pipes.tools.diagnosis.watched import LIMIT_SIGNAL

_START = "import sys; sys.path.pop(0); sys.path.append({root!r}); from dali_pipes.tools.diagnosis.watched import main; main()"
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun")
_GRACE_S = 5.0  # for the answer of a program that has reached its limit


class ProgramError(DaliPipesError):
    """A program that could not be diagnosed; the text says why."""

    status = 1


def check_program(words: Sequence[str]) -> tuple[list[str], bool]:
    """The words of the program without `python`, and whether the first is a module's name.

    Raises:
        ConfigError: it is no program that diagnose can watch.
    """
    given = list(words)
    if given and re.fullmatch(r"python[\d.]*t?", Path(given[0]).name):
        given.pop(0)
    module = given[:1] == ["-m"]
    given = given[1:] if module else given
    if not given:
        raise ConfigError("-- is followed by no program; write dali-pipes diagnose -- train.py ARGS")
    name = Path(given[0])
    alone = "give the program itself, which then trains in one process on one device: dali-pipes diagnose -- train.py ARGS"
    if name.name in _LAUNCHERS or (module and given[0] in ("torch.distributed.run", "torch.distributed.launch")):
        raise ConfigError(f"{name.name} starts several processes, of which diagnose cannot watch the loops; {alone}")
    if name.suffix == ".ipynb":
        raise ConfigError(f"{name}: a notebook; in it, call dali_pipes.diagnose(loader, step), or export it (jupyter nbconvert)")
    if name.suffix in (".sh", ".bash"):
        raise ConfigError(f"{name}: a shell script; give the Python program that it starts: dali-pipes diagnose -- train.py ARGS")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ConfigError("WORLD_SIZE is set: a process of several; start diagnose without torchrun or srun")
    if not module and not name.is_file():
        raise ConfigError(f"{name}: no such file; after -- comes a Python program and its arguments")
    return given, module


def diagnose_program(words: Sequence[str], *, seconds: float, rounds: int, cold: bool, limit: float) -> dict[str, Any]:
    """Runs the program until its loop has been measured, prints the report to stderr, and returns it.

    Args:
        limit: seconds after which the program is ended, whatever it does.

    Raises:
        ConfigError: no program that can be watched.
        ProgramError: no loop was found, or it could not be measured.
    """
    program, module = check_program(words)
    _say(f"running {' '.join(words)} until its training loop begins")
    start, found = time.time(), dict[str, Any]()
    with tempfile.NamedTemporaryFile("r") as dump:
        job = {"program": program, "module": module, "seconds": seconds, "rounds": rounds, "cold": cold, "start": start}
        job |= {"dump": dump.name, "parent": os.getpid(), "width": 120}
        with _started(job) as (process, answers):
            for answer in _answers(process, answers, start + limit):
                found |= answer
                if "doing" in answer:
                    _say(answer["doing"])
                elif "seconds" in answer:
                    earlier = "".join(f"; before it {each}" for each in answer["before"])
                    _say(f"the loop at {answer['loop']} began after {answer['seconds']:.1f} s{earlier}")
        stack = [line.strip() for line in dump.read().splitlines() if line.strip().startswith("File")][:1]
    if "diagnosis" in found:
        print(found["text"], end="", file=sys.stderr)
        before = {"seconds_before_loop": found["seconds"], "loops_before": found["before"]}
        return {"program": list(words), **before, **found["diagnosis"]}
    if found.get("trace"):
        print(found["trace"], end="", file=sys.stderr)
    over = f"within limit={limit:g} s " if time.time() - start >= limit else ""
    where = f"it was at {stack[0]}" if stack else "it did not say where it was"
    why = found.get("error", f"{where}, and was ended" if over else f"it ended with status {process.returncode}, and no word")
    raise ProgramError(f"{' '.join(words)} was not diagnosed {over}({why})")


@contextlib.contextmanager
def _started(job: dict[str, Any]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process and the descriptor of its answers; at the end of the block it is ended with all its descendants."""
    reading, writing = os.pipe()
    code = _START.format(root=str(Path(__file__).resolve().parents[3]))
    process = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(job | {"pipe": writing})],
        stdin=subprocess.DEVNULL,
        stdout=sys.__stderr__,
        pass_fds=(writing,),
        start_new_session=True,
    )
    os.close(writing)
    try:
        yield process, reading
    finally:
        descendants = list[psutil.Process]()
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants = psutil.Process(process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for each in descendants:  # also those in sessions of their own
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait()
        os.close(reading)


def _answers(process: subprocess.Popen[bytes], reading: int, deadline: float) -> Iterator[dict[str, Any]]:
    """The lines that it sends until it ends; at the deadline it is asked where it is. Its workers hold the pipe open for longer."""
    rest, asked = b"", False
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while True:
            ended = process.poll() is not None
            while selector.select(0.0 if ended else 0.1):
                data = os.read(reading, 65536)
                if not data:
                    selector.unregister(reading)
                    break
                *lines, rest = (rest + data).split(b"\n")
                yield from map(json.loads, lines)
            if ended or (asked and time.time() > deadline + _GRACE_S):
                return
            if not selector.get_map():
                time.sleep(0.05)
            if not asked and time.time() > deadline:
                process.send_signal(LIMIT_SIGNAL)
                asked = True


def _say(text: str) -> None:
    print(f"diagnose: {text}", file=sys.stderr, flush=True)
