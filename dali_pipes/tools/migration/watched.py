"""In the process of a user's program: runs it until its training begins, and reports its
DataLoaders; then it is the arm that measures one of them. Nothing of what follows in the program
runs.

Nothing heavy is imported before the program has done so itself, since a program may set
OMP_NUM_THREADS before it imports torch.
"""

import faulthandler
import json
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from dali_pipes.measure.program_loaders import (
    MadeLoader,
    ProgramLoaders,
    run_until_training,
    with_names,
)
from dali_pipes.measure.program_process import TRIAL_JOB
from dali_pipes.system.child import Controller
from dali_pipes.system.program.answers import LIMIT_SIGNAL, end_process
from dali_pipes.system.program.frames import place_of


def run_and_measure(controller: Controller) -> NoReturn:
    """Runs the program in this process, which ends with it.

    The job: words, is_module, number (of the DataLoader that is measured; None: that of training),
    loader (ours, which it is compared with), cache_dir, folder (for the manifest) and dump.
    """
    job, start = controller.job, time.monotonic()

    def fail(message: str, trace: str = "", status: int = 1) -> NoReturn:
        controller.send({"failed": message, "trace": trace, "status": status})
        end_process(status)

    def at_limit(frame: Any) -> NoReturn:
        fail(f"its training had not begun; it was at {place_of(frame)}")

    signal.signal(LIMIT_SIGNAL, lambda number, frame: at_limit(frame))
    # open for the life of the process: during a call into C no handler of Python's runs, and then
    # faulthandler writes where the program is
    dump = open(job["dump"], "w")  # noqa: SIM115
    faulthandler.register(LIMIT_SIGNAL, file=dump, all_threads=False, chain=True)

    def reached(loaders: ProgramLoaders, made: MadeLoader | None) -> NoReturn:
        if made is None:
            fail(_without_loader())
        controller.send({"seconds": time.monotonic() - start})

        status = 1
        try:
            measured = _report(controller, loaders, made)
            # "go" comes when the job of the trials is in its file
            if controller.go():
                controller.job = json.loads(Path(job["folder"], TRIAL_JOB).read_text())
                _measure(controller, measured)
            status = 0
        except BaseException:  # none of what the program does after an error may happen
            traceback.print_exc()

        end_process(status)

    run_until_training(job["words"], job["is_module"], reached, fail)


def _without_loader() -> str:
    source = "tf.data" if "tensorflow" in sys.modules else "images that a program reads itself"
    return (
        "it ended and has made no DataLoader, which is what migrate replaces; instead of "
        f"{source} write dali_pipes.build_loader (docs/tutorials/first-run.md)"
    )


def _report(controller: Controller, loaders: ProgramLoaders, training: MadeLoader) -> Any:
    """Sends what can be said of each DataLoader, and the work of the one that is measured, which it
    returns.
    """
    from dali_pipes.adapters.from_torch.reading import NotConvertibleError
    from dali_pipes.errors import ConfigError
    from dali_pipes.measure.users_loader import save_work
    from dali_pipes.measure.workload import from_dict
    from dali_pipes.tools.migration.report import (
        LoaderReport,
        convert,
        describe,
        describe_failure,
    )

    job, measured = controller.job, None
    number = training.number if job["number"] is None else job["number"]
    for made in loaders.made:
        controller.send({"doing": f"reading DataLoader {made.number} of {len(loaders.made)}"})
        work, unmeasurable = None, ""
        try:
            report, conversion = convert(made.loader, job["cache_dir"])
            if conversion is not None and made.number == number:
                report.compared = conversion.compared(from_dict(job["loader"]), "auto")
                try:
                    work = save_work(made.loader, conversion, job["folder"])
                    measured = made.loader
                except ConfigError as error:
                    unmeasurable = str(error)
        except NotConvertibleError as error:  # the comparison has shown a difference
            report = LoaderReport(text=describe(made.loader), refusal=str(error))
        except Exception as error:
            traceback.print_exc()
            report = LoaderReport(text=describe(made.loader), refusal=describe_failure(error))

        described = {
            "number": made.number,
            "origin": asdict(with_names(made)),
            "report": report.to_dict(),
            "trains": made is training,
            "before_training": made.before_training and made is not training,
            "iterated_by": made.iterated_by,
            "work": work,
            "unmeasurable": unmeasurable,
        }
        controller.send({"loader": described})

    controller.send({"complete": True, "optimizers": loaders.optimizers})
    return measured


def _measure(controller: Controller, dataloader: Any) -> None:
    from dali_pipes.data.manifest import Manifest
    from dali_pipes.errors import DaliPipesError
    from dali_pipes.measure.arms.program_loader import ProgramLoaderConfig
    from dali_pipes.measure.arms.users_dataloader import LiveLoader
    from dali_pipes.measure.trial import run_trial
    from dali_pipes.measure.workload import Workload

    def open_loader(work: Workload, config: ProgramLoaderConfig) -> LiveLoader:
        images = len(Manifest.load(work.manifest))
        origin = f"{config.place}, in {' '.join(config.words)}"
        return LiveLoader(dataloader, images, work.batch_size, config, origin)

    try:
        run_trial(controller, open_loader)
    except DaliPipesError as error:
        controller.send({"error": error.summary})
