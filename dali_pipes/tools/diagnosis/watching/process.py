"""dali-pipes diagnose -- train.py ARGS: runs a user's program until its loop has been measured.

`diagnose_program` starts the program with watched.py around it, which answers through a pipe with
lines of JSON: what it does, the loop it found, and the diagnosis or an error.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dali_pipes.system.files import make_run_folder
from dali_pipes.system.program.process import ProgramError, ProgramProcess, start_program
from dali_pipes.system.program.words import read_program, say

_WATCHED = "dali_pipes.tools.diagnosis.watching.watched:main"


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

        with start_program(_WATCHED, job, program.flags) as child:
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
