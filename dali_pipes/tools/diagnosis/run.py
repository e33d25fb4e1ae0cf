"""dali-pipes diagnose from start to end, for a configuration of dali-pipes train.

`diagnose` checks the configuration, measures a `ConfiguredProgram`, and writes the report. With
corun= other processes run `train` on the same images meanwhile.
"""

import base64
import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dali_pipes.backends.auto.config import AutoConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.registry import is_for_training
from dali_pipes.data.images import open_images, repeat_epoch, sample_images, warm_page_cache
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.measure.gpus import gpu_of
from dali_pipes.measure.worker_process import MeasuringProcess
from dali_pipes.plan.plan import Rank
from dali_pipes.system.child import Controller
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.files import make_run_folder
from dali_pipes.system.progress import steps
from dali_pipes.system.provenance import provenance
from dali_pipes.system.stdout import print_json, save_result, say
from dali_pipes.tools.diagnosis.config import DiagnoseConfig
from dali_pipes.tools.diagnosis.examination.budget import ProbeBudget
from dali_pipes.tools.diagnosis.examination.examination import examine
from dali_pipes.tools.diagnosis.examination.probes import Probes
from dali_pipes.tools.diagnosis.measuring.training import drive
from dali_pipes.tools.diagnosis.programs.configured import ConfiguredProgram
from dali_pipes.tools.diagnosis.report import print_diagnosis, to_dict
from dali_pipes.training.network.build import (
    check_channels,
    check_compiler,
    check_model,
    check_size,
    refuse_training_options,
)
from dali_pipes.training.tasks.build import name_task

console = Console(stderr=True)


def diagnose(config: DiagnoseConfig) -> None:
    """Diagnoses a configuration.

    The tables go to stderr, the result as one line of JSON to stdout, and into a new folder with
    the list of the images.

    Raises:
        DaliPipesError: a mistake in the configuration or the images.
    """
    refuse_training_options(config.model, but=["options"])
    name = check_model(config.model.name)
    check_size(name, config.transform.size_at(0), config.model.options)
    check_channels(name, config.transform.channels)
    if config.model.compile:
        check_compiler()

    if not is_for_training(config.loader):
        raise ConfigError(
            "this loader is for benchmarks only, not for training; use loader=dali, dali_cpu "
            "or torch"
        )
    if Rank.from_env().count > 1:
        raise ConfigError(
            "diagnose runs in one process; start it without torchrun; corun= runs several "
            "programs on this machine"
        )

    # PyTorch does not know of a CPU quota, which `available_cpus` counts
    torch.set_num_threads(available_cpus())
    images = open_images(config.data, "train")
    name_task(config, images, config.data.source("train"))
    manifest = sample_images(images, config.images, config.seed)
    # a small set is repeated, so that a span does not end with it
    epoch = repeat_epoch(manifest)
    files = [
        Path(extent.file)
        for extent in sorted({manifest.extent(sample_id) for sample_id in range(len(manifest))})
    ]
    program = ConfiguredProgram(config, epoch, files, images.bytes_in_all)
    # before anything is measured, and for all the programs
    program.check_memory(config.corun)
    warm_page_cache(manifest)

    folder = make_run_folder(Path(config.out or "runs/diagnose"))
    epoch.save(folder / "manifest.parquet")
    budget = ProbeBudget(
        config.rounds, config.seconds, config.verify_pairs if config.verify else 0, config.cold
    )

    alone = None
    with steps(budget.steps) as announce:
        # before the others start: the report compares the pace beside them with this one
        if config.corun > 1:
            announce("alone, without the other programs")
            with program.feed() as feed:
                probes, step = Probes(program, feed, config.seconds), program.step()
                drive(probes.start(), step)
                alone = drive(probes.together(), step).rate
        with (
            _other_programs(config, str(folder / "manifest.parquet"))
            if config.corun > 1
            else nullcontext()
        ):
            diagnosis = examine(program, budget, announce)

    print_diagnosis(diagnosis, program.workers, console)
    result = to_dict(diagnosis, program.workers) | {"corun": config.corun, "alone": alone}
    if alone:
        share = diagnosis.figures.together / alone
        say(
            console,
            (
                f"Beside {config.corun - 1} like it, a program makes {share:.0%} of what it makes "
                "alone."
            ),
        )

    examined = program.config.loader
    result["loader"] = {"name": examined.name, **asdict(examined)}
    if isinstance(config.loader, AutoConfig):
        device = f" (device={examined.device})" if isinstance(examined, DaliConfig) else ""
        say(
            console,
            f"loader=auto begins with {examined.name}{device}, which was examined here; to change "
            f"its options, name it: loader={examined.name}.",
        )
    result["provenance"] = provenance(manifest.describe(), config.overrides)
    say(console, f"All figures: {save_result(folder, result)}")
    print_json(result)


@contextmanager
def _other_programs(config: DiagnoseConfig, manifest: str) -> Iterator[None]:
    """Runs `corun` - 1 other programs on a saved manifest within the block, each on a separate GPU
    as far as there are enough.
    """
    # a job is JSON, a configuration is not
    job: dict[str, Any] = {
        "config": base64.b64encode(pickle.dumps(config)).decode(),
        "manifest": manifest,
    }
    cpus = os.sched_getaffinity(0)

    with ExitStack() as stack:
        others = [
            stack.enter_context(
                MeasuringProcess(
                    f"{__name__}:train",
                    job,
                    f"program {number + 1}",
                    cpus,
                    gpu_of(number, config.corun),
                )
            )
            for number in range(1, config.corun)
        ]
        # each has trained on a batch before the measurement begins
        for other in others:
            other.answer()
        yield
        for other in others:
            # one that has ended by itself raises its error here
            if not other.running:
                other.answer()


def train(controller: Controller) -> None:
    manifest = Manifest.load(controller.job["manifest"])
    program = ConfiguredProgram(
        pickle.loads(base64.b64decode(controller.job["config"])), manifest, []
    )

    step = program.step()

    with program.feed() as feed:
        step(next(feed.batches))
        # it has started: the others may be measured from here on
        controller.send({})
        while not controller.stop.is_set():
            step(next(feed.batches))
