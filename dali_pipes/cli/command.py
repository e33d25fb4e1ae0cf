"""The command dali-pipes: finds the job that the first word names, and starts it.

`main` reads the first word, and `start` runs the job: Hydra composes the options of most jobs;
`index` and `diagnose … -- PROGRAM` read their words themselves.
"""

import difflib
import shutil
import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import version

from dali_pipes.cli.hydra import run
from dali_pipes.cli.jobs import DIRECT, JOBS, describe
from dali_pipes.cli.messages import explain_file_error, stop
from dali_pipes.cli.own_program import diagnose_own_program
from dali_pipes.errors import DaliPipesError


def main() -> None:
    """dali-pipes JOB [OPTION=VALUE …]"""
    name, *words = sys.argv[1:] or ["--help"]

    if name in ("-h", "--help", "help"):
        print(_overview())
    elif "--version" in (name, *words):
        print(f"dali-pipes {version('dali_pipes')}")
    elif name in JOBS:
        # Hydra and argparse read the options there
        sys.argv[1:] = words
        start(name)
    else:
        closest = difflib.get_close_matches(name, [*JOBS, "--help", "--version"], 1)
        stop(
            f"{name}: no such job; {f'did you mean {closest[0]}? ' if closest else ''}The jobs "
            f"are {', '.join(JOBS)}"
        )


def start(name: str) -> None:
    """Runs a job with the words of the command line that follow its name."""
    if name == "diagnose" and "--" in sys.argv[1:]:
        _run_direct(diagnose_own_program)
    elif name in DIRECT:
        _run_direct(JOBS[name])
    else:
        if name == "benchmark":
            sys.argv[1:] = map(function_option, sys.argv[1:])
        run(name, JOBS[name], describe(JOBS[name]))


def _run_direct(job: Callable[[], None]) -> None:
    """Runs a job that reads its words itself; a mistake ends it in one line."""
    try:
        job()
    except DaliPipesError as error:
        stop(str(error), error.status)
    except KeyboardInterrupt:
        stop("interrupted", 130)
    except OSError as error:
        stop(explain_file_error(error))


def function_option(word: str) -> str:
    """Returns the word module:function as an option, function=module:function."""
    return f"function={word}" if ":" in word and "=" not in word else word


def _overview() -> str:
    width = min(100, shutil.get_terminal_size((100, 0)).columns)
    lines = [
        textwrap.fill(
            _summary(job), width, initial_indent=f"    {name:<10} ", subsequent_indent=" " * 15
        )
        for name, job in JOBS.items()
    ]
    head = "dali-pipes JOB [OPTION=VALUE …]; dali-pipes JOB --help explains a job and its options."
    return "\n".join([textwrap.fill(head, width), "", *lines])


def _summary(job: Callable[..., None]) -> str:
    """Returns the first paragraph of a job's description, in one line."""
    return " ".join(describe(job).split("\n\n")[0].split())
