"""A trial of the DataLoader that a user's program trains with: the process runs the program until
its training begins, and the trial there.

Nothing heavy is imported before the program has done so itself.
"""

import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dali_pipes.measure.program_loaders import MadeLoader, ProgramLoaders, run_until_training
from dali_pipes.system.child import Controller
from dali_pipes.system.program.answers import end_process

if TYPE_CHECKING:
    from dali_pipes.measure.arms.users_dataloader import LiveLoader
    from dali_pipes.measure.workload import Workload


def run_trial(controller: Controller) -> NoReturn:
    """Runs the program, and then the trial; the process ends with it."""
    job, folder = controller.job["loader"], Path.cwd()

    def fail(message: str, trace: str = "", status: int = 1) -> NoReturn:
        sys.stderr.write(trace)
        last = trace.strip().splitlines()[-1:]
        controller.send({"error": ": ".join([f"{' '.join(job['words'])}: {message}", *last])})
        end_process(status)

    def reached(loaders: ProgramLoaders, made: MadeLoader | None) -> NoReturn:
        same = [each for each in loaders.made if each.number == job["number"]]
        if not same or same[0].origin.place(folder) != job["place"]:
            fail(f"this time it made other DataLoaders, and none at {job['place']}")
        _measure(controller, same[0].loader)

    # where the program is interrupted, none of what it does at Ctrl-C may happen, such as saving
    signal.signal(signal.SIGINT, lambda *_: end_process(130))
    run_until_training(job["words"], job["is_module"], reached, fail)


def _measure(controller: Controller, dataloader: Any) -> NoReturn:
    from dali_pipes.data.manifest import Manifest
    from dali_pipes.errors import DaliPipesError
    from dali_pipes.measure import trial
    from dali_pipes.measure.arms.program_loader import ProgramLoaderConfig
    from dali_pipes.measure.arms.users_dataloader import LiveLoader

    def open_loader(work: "Workload", config: ProgramLoaderConfig) -> "LiveLoader":
        origin = f"{config.place}, in {' '.join(config.words)}"
        images = len(Manifest.load(work.manifest))
        return LiveLoader(dataloader, images, work.batch_size, config, origin)

    status = 1
    try:
        trial.run_trial(controller, open_loader)
        status = 0
    except DaliPipesError as error:
        controller.send({"error": error.summary})
    except BaseException:
        traceback.print_exc()
    end_process(status)
