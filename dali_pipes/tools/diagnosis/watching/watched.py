"""In the process of a user's program: runs it as it is until its training loop has gone round once,
then examines that loop.

main runs the program, with hooks on DataLoader, optimizers and the loops of libraries (hooks.py)
-> Watch.next_batch: counts the batches of each loop; takes over the one in which an optimizer steps
-> ExaminedLoop.next_batch: from here on the loop trains on what the examination yields
-> ExaminedLoop._finish: the report goes to the parent process as JSON, and the process ends

A program that fails, ends, leaves its loop or runs out of time ends in `fail` or `end_early`.
Nothing heavy is imported before the program has done so itself, since a program may set
OMP_NUM_THREADS before it imports torch.
"""

import faulthandler
import json
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dali_pipes.tools.diagnosis.watching.answers import LIMIT_SIGNAL, Answers
from dali_pipes.tools.diagnosis.watching.frames import own_traceback
from dali_pipes.tools.diagnosis.watching.hooks import list_hooks
from dali_pipes.tools.diagnosis.watching.imports import install_hooks
from dali_pipes.tools.diagnosis.watching.watch import Watch

_REFUSES_LARGER = "the loop does not take batches of another size, as was tried"
_ENDED = "the program ended by itself"


def main() -> None:
    """Runs the program in this process, until its loop has been measured or it has ended.

    The first word is the job as JSON: pipe, dump, start, program (its words), module, seconds,
    rounds, cold, width, aside (an empty folder).
    """
    job = json.loads(sys.argv[1])
    # the program's own children must not hold the pipe open
    os.set_inheritable(job["pipe"], False)
    answers = Answers(os.fdopen(job["pipe"], "w"))
    watch = Watch(job, answers)

    signal.signal(LIMIT_SIGNAL, lambda number, frame: watch.at_limit(frame))
    # open for the life of the process: during a call into C no handler of Python's runs, and then
    # faulthandler writes where the program is
    dump = open(job["dump"], "w")  # noqa: SIM115
    faulthandler.register(LIMIT_SIGNAL, file=dump, all_threads=False, chain=True)
    watch.files.install()
    install_hooks(list_hooks(watch))

    try:
        _run_program(job["program"], job["module"])
    except SystemExit as end:
        if examined := watch.examined:
            examined.end_early(_REFUSES_LARGER if examined.step_may_fail else _ENDED)
        if end.code not in (None, 0):
            answers.fail(
                f"it ended by itself with {end.code!r}; {watch.describe_loops()}",
                status=end.code if isinstance(end.code, int) else 1,
            )
    except BaseException as error:
        if examined := watch.examined:
            if examined.step_may_fail:
                examined.end_early(_REFUSES_LARGER)
            if examined.has_rounds:
                sys.stderr.write(own_traceback(error))
                examined.end_early("the program failed by itself, with the traceback above,")
        answers.fail(
            f"it failed by itself; its traceback is above; {watch.describe_loops()}",
            own_traceback(error),
        )

    if watch.examined:
        watch.examined.end_early(_ENDED)
    answers.fail(
        "it ended without a loop over a DataLoader in which an optimizer steps; "
        f"{watch.describe_loops()}"
    )


def _run_program(words: Sequence[str], is_module: bool) -> None:
    """Runs a file, a folder or a module with its arguments; errors come out as they are.

    Args:
        words: the file or the module, and its arguments.
    """
    program, *_ = sys.argv[:] = [*words]
    if is_module:
        # as `python -m` does
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return

    # as `python FILE` does; run_path does so itself for a folder
    if not Path(program).is_dir():
        sys.path.insert(0, str(Path(program).resolve().parent))
    runpy.run_path(str(Path(program).absolute()), run_name="__main__")
