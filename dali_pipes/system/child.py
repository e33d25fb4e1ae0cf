"""Calls a function in a separate process: a driver or a library that crashes or hangs there ends that process only."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from typing import Any, NamedTuple

# not `-m`, which would warn on stderr that the package has already imported this module
_START = f"import sys; from {__name__} import main; main(*sys.argv[1:])"
_KILLED_AFTER_S = 5  # a process that hangs in the driver cannot even be killed


class ChildError(Exception):
    """The function returned nothing; the text says why."""


class Answer(NamedTuple):
    """The function's return value, as JSON has it, and the process's stderr and stdout."""

    value: Any
    output: str


def in_child(function: str, limit_s: float, *arguments: Any) -> Answer:
    """Calls "module:function" in a process that may take `limit_s` seconds; the module is imported there only.

    Args:
        arguments: values that JSON can hold.

    Raises:
        ChildError: it raised, crashed, or had not ended by then.
    """
    command = [sys.executable, "-P", "-c", _START, function, json.dumps(arguments)]
    with tempfile.TemporaryFile("w+") as answers, tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=answers, stderr=errors, start_new_session=True)
        status = _wait(process, limit_s)
        answers.seek(0)
        errors.seek(0)
        answer, output = answers.read(), errors.read()
    if not answer:
        raise ChildError("; ".join([f"crashed: its process ended with {status}", *output.strip().splitlines()[-1:]]))
    found = json.loads(answer)
    if "error" in found:
        raise ChildError(found["error"])
    return Answer(found["value"], output)


def _wait(process: subprocess.Popen, limit_s: float) -> str:
    """How the process ended."""
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        raise ChildError(f"hangs: no answer within limit_s={limit_s:g} seconds") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its child processes, such as a probe within a probe
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILLED_AFTER_S)
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def explain(error: BaseException) -> str:
    """An exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def main(function: str, arguments: str) -> None:
    module, name = function.split(":")
    with open(os.dup(1), "w") as answer:
        os.dup2(2, 1)  # keeps output of libraries out of the answer
        try:
            found = {"value": getattr(importlib.import_module(module), name)(*json.loads(arguments))}
        except Exception as error:
            found = {"error": explain(error)}
        json.dump(found, answer, default=asdict)
