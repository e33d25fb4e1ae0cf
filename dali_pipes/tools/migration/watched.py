"""In the process of a user's program: runs it until its training begins, and reports its
DataLoaders. Nothing of what follows in the program runs.

Nothing heavy is imported before the program has done so itself, since a program may set
OMP_NUM_THREADS before it imports torch.
"""

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict
from typing import Any, NoReturn

from dali_pipes.measure.program_loaders import (
    MadeLoader,
    ProgramLoaders,
    run_until_training,
    with_names,
)
from dali_pipes.system.program.answers import LIMIT_SIGNAL, Answers
from dali_pipes.system.program.frames import place_of


def main() -> None:
    """Runs the program in this process.

    The first word is the job as JSON: pipe, dump, start, words, is_module, number (of the
    DataLoader that is measured; None: that of training), loader (ours, which it is compared with),
    cache_dir and folder (for the manifest).
    """
    job = json.loads(sys.argv[1])
    # the program's own children must not hold the pipe open
    os.set_inheritable(job["pipe"], False)
    answers = Answers(os.fdopen(job["pipe"], "w"))

    def at_limit(frame: Any) -> None:
        answers.fail(f"its training had not begun; it was at {place_of(frame)}")

    signal.signal(LIMIT_SIGNAL, lambda number, frame: at_limit(frame))
    # open for the life of the process: during a call into C no handler of Python's runs, and then
    # faulthandler writes where the program is
    dump = open(job["dump"], "w")  # noqa: SIM115
    faulthandler.register(LIMIT_SIGNAL, file=dump, all_threads=False, chain=True)

    def reached(loaders: ProgramLoaders, made: MadeLoader | None) -> NoReturn:
        if made is None:
            answers.fail(_without_loader())
        answers.send({"seconds": time.time() - job["start"]})
        try:
            _report(job, answers, loaders, made)
        except BaseException:
            answers.fail("its DataLoaders could not be read", traceback.format_exc())
        answers.end(0)

    run_until_training(job["words"], job["is_module"], reached, answers.fail)


def _without_loader() -> str:
    if "tensorflow" in sys.modules:
        return (
            "it ended and has made no DataLoader, which migrate replaces; in the place of tf.data "
            "write dali_pipes.build_loader (docs/tutorials/first-run.md)"
        )
    return (
        "it ended and has made no DataLoader, which migrate replaces; for images that a program "
        "reads itself, write dali_pipes.build_loader (docs/tutorials/first-run.md)"
    )


def _report(
    job: dict[str, Any], answers: Answers, loaders: ProgramLoaders, training: MadeLoader
) -> None:
    """Sends what can be said of each DataLoader, and the work of the one that is measured."""
    from dali_pipes.adapters.from_torch.reading import NotConvertibleError
    from dali_pipes.measure.users_loader import save_work
    from dali_pipes.measure.workload import from_dict
    from dali_pipes.tools.migration.report import (
        LoaderReport,
        convert,
        describe,
        describe_failure,
    )

    number = training.number if job["number"] is None else job["number"]
    for made in loaders.made:
        answers.send({"doing": f"reading DataLoader {made.number} of {len(loaders.made)}"})
        work = None
        try:
            report, conversion = convert(made.loader, job["cache_dir"])
            if conversion is not None and made.number == number:
                report.compared = conversion.compared(from_dict(job["loader"]), "auto")
                work = save_work(made.loader, conversion, job["folder"])
        except NotConvertibleError as error:  # the comparison has shown a difference
            report = LoaderReport(text=describe(made.loader), refusal=str(error))
        except Exception as error:
            traceback.print_exc()
            report = LoaderReport(text=describe(made.loader), refusal=describe_failure(error))

        answers.send(
            {
                "loader": {
                    "number": made.number,
                    "origin": asdict(with_names(made)),
                    "report": report.to_dict(),
                    "trains": made is training,
                    "before_training": made.before_training and made is not training,
                    "iterated_by": made.iterated_by,
                    "work": work,
                }
            }
        )
    answers.send({"complete": True, "optimizers": loaders.optimizers})
