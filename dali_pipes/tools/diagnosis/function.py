"""diagnose(): the examination of a loader and a step from within a user's program."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.utils.data import DataLoader

from dali_pipes.adapters.lazy.loader import LazyLoader
from dali_pipes.checks import describe_value
from dali_pipes.errors import ConfigError
from dali_pipes.loader.loader import Loader
from dali_pipes.options import check_arguments
from dali_pipes.system.progress import steps
from dali_pipes.tools.diagnosis.examination.budget import ProbeBudget
from dali_pipes.tools.diagnosis.examination.diagnosis import Diagnosis
from dali_pipes.tools.diagnosis.examination.examination import examine
from dali_pipes.tools.diagnosis.measuring.training import Step
from dali_pipes.tools.diagnosis.programs.base import TrainingProgram
from dali_pipes.tools.diagnosis.programs.dataloader import DataLoaderProgram
from dali_pipes.tools.diagnosis.programs.loader import LoaderProgram
from dali_pipes.tools.diagnosis.programs.step_calls import StepCalls
from dali_pipes.tools.diagnosis.report import print_diagnosis

_PAIRS = 3  # runs with and without the fix that is verified


@check_arguments(seconds=(0, 86_400), rounds=(1, 10_000), limit=(1, 86_400))
def diagnose(
    loader: Any,
    step: Step,
    *,
    seconds: float = 1.5,
    rounds: int = 3,
    cold: bool = True,
    verify: bool = False,
    limit: float = 60.0,
    show: bool = True,
) -> Diagnosis:
    """Why training waits, for a program that uses PyTorch's DataLoader, tf.data, or one of our
    loaders.

    The loader is run from its start several times, in the thread that calls this, and the step with
    real batches: do it before training.

    Args:
        loader: any DataLoader, a tf.data.Dataset, what `build_loader` built, or what `from_torch`
            made. If a DataLoader's dataset has `samples`, like torchvision's ImageFolder, the files
            are known: then cold files are tried as well, and so is what `from_torch` makes of it.
        step: is called with each batch as the loader yields it, and does all that training does
            with it. On a GPU it copies the batch there, unless the batch is already there.
        seconds: minimum duration of each measurement; at least three steps are taken.
        rounds: how often each part is measured.
        cold: also train on files that were dropped from the page cache, if the files are known.
        verify: also train with the first fix that can be tried, and report its gain beside the
            prediction.
        limit: seconds after which nothing further is begun; one round and the verdict always come.
        show: print the tables to stderr.

    Returns:
        The verdict with its evidence, and fixes with their predicted gain; docs/diagnose.md
        explains it.

    Raises:
        ConfigError: no such loader, or one without batches.
    """
    caller = Path(sys._getframe(2).f_code.co_filename)  # beyond check_arguments, which wraps this
    program = _program(loader, step, caller)

    budget = ProbeBudget(rounds, seconds, _PAIRS if verify else 0, cold, limit)
    with steps(budget.steps) as announce:
        diagnosis = examine(program, budget, announce if show else lambda text: None)
    if show:
        print_diagnosis(diagnosis, program.workers, Console(stderr=True))
    return diagnosis


def _program(loader: Any, step: Step, caller: Path) -> TrainingProgram:
    tensorflow = sys.modules.get("tensorflow")  # a caller with a tf.data.Dataset has imported it
    is_tfdata = tensorflow is not None and isinstance(loader, tensorflow.data.Dataset)
    if not is_tfdata and not isinstance(loader, (DataLoader, Loader, LazyLoader)):
        raise ConfigError(
            f"{type(loader).__name__} is not a torch DataLoader, nor a loader of "
            "dali_pipes, nor a tf.data.Dataset: "
            "diagnose(loader, step)"
        )

    if not callable(step):
        raise ConfigError(
            f"step is {describe_value(step)}; it takes the function that trains on a batch: "
            "diagnose(loader, step)"
        )

    if is_tfdata:
        # imports TensorFlow, which is an extra
        from dali_pipes.tools.diagnosis.programs.tfdata import TfDataProgram

        return TfDataProgram(loader, step)
    if not isinstance(loader, DataLoader):
        return LoaderProgram(loader, step)

    calls = StepCalls()
    program = DataLoaderProgram(loader, calls.watching(step), (caller, None))
    program.step_calls = calls
    return program
