"""A training run from start to end.

`train` joins the ranks, checks the options, opens the images, chooses the folder, restores a
checkpoint if there is one, trains, and writes summary.json. All that can be refused is refused
before the folder is made.
"""

import datetime
import json
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from dali_pipes.backends.registry import is_for_training
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError, DaliPipesError
from dali_pipes.loader.build import build_loader
from dali_pipes.loader.loader import Loader
from dali_pipes.plan.plan import Rank
from dali_pipes.system.files import to_yaml
from dali_pipes.system.functions import import_function
from dali_pipes.system.provenance import provenance
from dali_pipes.system.stdout import print_json
from dali_pipes.system.traces import trace
from dali_pipes.training import checkpoint
from dali_pipes.training.claim import Claim
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.data import left_out, open_both, open_untrained
from dali_pipes.training.launch import all_gather, divide_cpus, launch, on_all_ranks
from dali_pipes.training.log.log import Log, describe
from dali_pipes.training.log.loggers import check_loggers, open_loggers
from dali_pipes.training.log.meter import summarize
from dali_pipes.training.network.average import averaged_weights
from dali_pipes.training.network.build import check_network, title_of
from dali_pipes.training.network.memory import check_memory, explain
from dali_pipes.training.network.weights import describe_pixels, read_pixels
from dali_pipes.training.optimizing.recipe import build_mixing, check_optimizer
from dali_pipes.training.supervision import Heartbeat, Interrupt
from dali_pipes.training.tasks.evaluate import validate
from dali_pipes.training.tasks.monitor import Monitor
from dali_pipes.training.tasks.own import ARGUMENTS
from dali_pipes.training.tasks.start import start_task
from dali_pipes.training.tasks.supervised import Supervised
from dali_pipes.training.tasks.task import Task
from dali_pipes.training.trainer import BEST, LAST, Interrupted, Trainer, TrainingError
from dali_pipes.training.unused_options import describe_unused


def train(
    config: TrainConfig, folder: Path | None = None, search: str | None = None
) -> Path | None:
    """Trains, or with `eval_only` evaluates.

    The result is written to summary.json (of training only) and, as one line of JSON, to stdout.

    Args:
        folder: the folder of this job within a sweep; None: `config.out`, or a new folder under
            runs/train.
        search: "max" or "min", if a search over runs looks for most or least of `monitor`.

    Returns:
        The run's folder, on the rank that has written it; None: on another one, or with
        `eval_only`.

    Raises:
        DaliPipesError: a mistake in the configuration or the images; no existing file has been
            changed.
        SystemExit: a signal came, and the run has been saved; the status is 128 + the signal's
            number, as in a shell.
    """
    with trace() if config.trace else nullcontext():
        return _train(config, folder, search)


def _train(config: TrainConfig, folder: Path | None, search: str | None) -> Path | None:
    fabric = launch(config.precision)
    on_all_ranks(fabric, lambda: _check(config, folder))

    loader, cpus = divide_cpus(fabric, config.loader)
    config = replace(config, loader=loader)
    alive = Heartbeat(config.heartbeat if fabric.global_rank == 0 else None)

    if config.eval_only:
        _evaluate(config, fabric, alive)
        return None

    # rank 0 scans first, and the others find its cache
    train_images, val = on_all_ranks(fabric, lambda: open_both(config))

    elsewhere = "hydra.sweep.dir=DIR" if folder else "out=DIR"
    # rank 0 chooses for all: the default name holds its clock's time
    folder = Path(
        fabric.broadcast(
            str(
                folder or config.out or f"runs/train/{datetime.datetime.now():%Y-%m-%d_%H-%M-%S_%f}"
            )
        )
    )
    first = fabric.global_rank == 0

    with (
        Claim(folder, elsewhere, (f".{LAST}.*", f".{BEST}.*")) as claim,
        build_loader(
            train_images,
            config.loader,
            transform=config.transform,
            # one batch of the loader is one step of the optimizer, on this rank
            batch_size=config.batch_size * config.accumulate,
            seed=config.seed,
            sampling=config.sampling,
            rank=Rank(fabric.global_rank, fabric.world_size),
            on_bad_sample=config.on_bad_sample,
            max_bad_fraction=config.max_bad_fraction,
            device=fabric.device,
            batch_transform=build_mixing(config.mixing, len(train_images.classes)),
        ) as images,
        Interrupt() as interrupt,
        alive as heartbeat,
    ):
        on_all_ranks(fabric, lambda: claim.take() if first else None)
        path = on_all_ranks(fabric, lambda: _find_checkpoint(config, folder, elsewhere))
        resumes = path is not None
        start = on_all_ranks(fabric, lambda: start_task(config, train_images, resumes))
        network = start.task.network if isinstance(start.task, Supervised) else None
        on_all_ranks(fabric, lambda: check_memory(config, train_images, fabric.device, network))
        with _explain_out_of_memory(folder, fabric):
            trainer = Trainer(config, fabric, start.task, images, val, folder)
        on_all_ranks(fabric, lambda: _check_search(trainer.monitor, search))
        # before the folder is made: a checkpoint that is refused leaves nothing behind
        changes = (
            on_all_ranks(fabric, lambda: _restore(trainer, path, folder, fabric)) if path else []
        )
        on_all_ranks(fabric, lambda: folder.mkdir(parents=True, exist_ok=True))
        on_all_ranks(fabric, lambda: claim.take() if first else None)
        on_all_ranks(fabric, lambda: _refuse_begun(folder) if path is None else None)

        loggers = on_all_ranks(
            fabric, lambda: open_loggers(config, folder, trainer.step) if first else []
        )
        said = [*start.said, *describe_unused(config), cpus, *changes]
        with Log(folder if first else None, trainer.step, loggers) as log:
            _log_start(config, fabric, trainer, images, log, said, folder)
            try:
                with _explain_out_of_memory(folder, fabric):
                    trainer.fit(log, interrupt, heartbeat)
            except Interrupted:
                _stop_after_signal(fabric, folder, log, interrupt)
            except Exception as error:
                # of the user's own code, or of a library: its traceback stays
                if not isinstance(error, DaliPipesError):
                    error.add_note(_describe_end(error, folder))
                raise
            finally:
                trainer.close()

            summary = summarize(
                trainer.history,
                trainer.monitor,
                fabric,
                images,
                provenance(train_images.describe(), config.overrides),
            )
            summary["loader"] = images.decodes
            summary["left_out"] = {"train": left_out(train_images), "val": left_out(val)}
            log.say(summary["conclusion"])
            if trainer.monitor.is_nan(trainer.history):
                log.say(
                    f"{trainer.monitor.name} was not a number in any evaluation, so no epoch is "
                    f"the best, and there is no {BEST}"
                )

    if fabric.global_rank == 0:
        (folder / "summary.json").write_text(json.dumps(summary, indent=1))
        print_json(summary)
    return folder if fabric.global_rank == 0 else None


def _check(config: TrainConfig, folder: Path | None) -> None:
    # mistakes in the options, before any image is opened
    check_optimizer(config.optimizer)
    check_loggers(config)
    if config.function:
        import_function(config.function, ARGUMENTS)
    else:
        sizes = sorted(config.transform.every_size | config.eval_transform.every_size, key=str)
        check_network(config.model, sizes, config.eval_transform.channels)

    if not is_for_training(config.loader):
        raise ConfigError(
            "this loader is for benchmarks only, not for training; use loader=dali, dali_cpu "
            "or torch"
        )

    if folder and config.out:
        raise ConfigError(
            f"out={config.out} would be the folder of every job of the sweep; set "
            "hydra.sweep.dir=DIR instead"
        )
    if config.resume == "auto" and not (folder or config.out):
        raise ConfigError(
            "resume=auto looks for last.pt in the folder of the run; name it: out=DIR"
        )


def _check_search(monitor: Monitor, search: str | None) -> None:
    if search is None:
        return
    if monitor.name is None:
        raise ConfigError("a search needs a value to search by: set monitor=loss, or validation")
    if monitor.mode != search:
        better, direction = ("more", "maximize") if monitor.mode == "max" else ("less", "minimize")
        raise ConfigError(
            f"{better} of {monitor.name} is better: set hydra.sweeper.direction={direction}"
        )


def _find_checkpoint(config: TrainConfig, folder: Path, elsewhere: str) -> Path | None:
    """Returns the checkpoint to resume from, or None for a fresh start.

    Args:
        elsewhere: the option that names another folder.

    Raises:
        ConfigError: the folder holds another run, which would be overwritten.
    """
    last = folder / LAST
    path = last if config.resume == "auto" else Path(config.resume) if config.resume else None
    is_here = path is not None and path.absolute().parent == folder.absolute()
    if last.exists() and not is_here:
        raise ConfigError(
            f"{folder} holds a run already; resume it (resume=auto), or choose another folder "
            f"with {elsewhere}"
        )
    best = folder / BEST
    if best.exists() and not last.exists() and (not is_here or path == last):
        raise ConfigError(
            f"{folder} holds {BEST} of another run, and no {LAST}; go on from it (resume={best}), "
            f"or choose another folder with {elsewhere}"
        )
    return None if config.resume == "auto" and not last.exists() else path


def _refuse_begun(folder: Path) -> None:
    # by a run that started at the same moment, and has ended while this one waited for the folder
    if (folder / LAST).exists():
        raise ConfigError(f"another run has begun in {folder}; start again to go on with it")


def _restore(trainer: Trainer, path: Path, folder: Path, fabric: Any) -> list[str]:
    with _explain_out_of_memory(folder, fabric):
        return trainer.restore(checkpoint.load(path), path)


@contextmanager
def _explain_out_of_memory(folder: Path, fabric: Any) -> Iterator[None]:
    """Turns an OutOfMemoryError into a TrainingError that says who holds the GPU's memory, and
    keeps what PyTorch holds in `folder`.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        folder.mkdir(parents=True, exist_ok=True)
        snapshot = folder / f"out_of_memory_rank{fabric.global_rank}.pickle"
        raise TrainingError(explain(error, snapshot)) from None


def _log_start(
    config: TrainConfig,
    fabric: Any,
    trainer: Trainer,
    images: Loader,
    log: Log,
    said: list[str],
    folder: Path,
) -> None:
    """Logs the start of the run with further sentences, and writes the composed configuration."""
    if fabric.global_rank:
        return

    plan, device = images.plan, fabric.device.type
    log.say(
        f"{config.function or title_of(config.model)} on {fabric.world_size} × {device}, "
        f"{config.precision}: "
        f"{config.epochs} epochs of {len(images):,} "
        f"steps of {plan.global_batch_size}; {len(plan.manifest):,} images of "
        f"{len(plan.manifest.classes):,} classes"
    )
    for sentence in (images.explain(), *said):
        log.say(sentence)
    log.say(f"Everything is kept in {folder}")

    if len(trainer.history) >= config.epochs:
        log.say(f"all {config.epochs} epochs are done already; a larger epochs trains on")
    elif trainer.step:
        log.say(f"goes on at epoch {images.epoch + 1}, step {trainer.step:,} of the run")

    # the configuration that the run began with stays in config.yaml
    name = f"config_from_step_{trainer.step}.yaml" if trainer.step else "config.yaml"
    (folder / name).write_text(to_yaml(config))


def _stop_after_signal(fabric: Any, folder: Path, log: Log, interrupt: Interrupt) -> NoReturn:
    """Logs that the run has been saved, calls the previous signal handler, and ends the process."""
    # the signal may have reached some of the ranks only
    number = max(number or 0 for number in all_gather(fabric, interrupt.signal))
    log.say(f"stopped by {signal.Signals(number).name} and saved; resume=auto out={folder} goes on")
    # a launcher's own handler may requeue the job, now that everything is saved
    interrupt.pass_on()
    raise SystemExit(128 + number)


def _describe_end(error: Exception, folder: Path) -> str:
    """Returns what follows a traceback: the last place in it that is the user's, and what is kept
    of the run.
    """
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")]
    others = [Path(__file__).parents[1], *map(Path, libraries)]
    places = [
        f"{place.filename}, line {place.lineno}, in {place.name}"
        for place in traceback.extract_tb(error.__traceback__)
        if not any(Path(place.filename).is_relative_to(other) for other in others)
    ]
    kept = f"the log is {folder / 'train.log'}, and nothing else is saved yet"
    if (last := folder / LAST).exists():
        kept = f"{last} is kept: resume=auto out={folder} goes on from it"
    return "; ".join([*places[-1:], kept])


def _evaluate(config: TrainConfig, fabric: Any, alive: Heartbeat) -> None:
    """Evaluates a checkpoint on all validation images: the average of its weights if it has one,
    else the weights.
    """
    path = Path(str(config.checkpoint))
    state = on_all_ranks(fabric, lambda: checkpoint.load(path))
    val, unknown = on_all_ranks(fabric, lambda: open_untrained(config, state, path))
    task = on_all_ranks(fabric, lambda: _restore_task(config, val, state, path))

    with alive as heartbeat, _explain_out_of_memory(path.parent, fabric):
        evaluation = validate(config, task.to(fabric.device), val, fabric, heartbeat)

    if fabric.global_rank == 0:
        wrong = describe_pixels(read_pixels(state, path), config.eval_transform)
        for note in filter(None, (unknown, wrong)):
            print(f"Note: {note}", file=sys.stderr)
        metrics = ", ".join(map(describe, evaluation.values.items()))
        print(f"{path}: {metrics} on {evaluation.images:,} images", file=sys.stderr)
        print_json(
            evaluation.values
            | {"images": evaluation.images, "by_class": evaluation.by_class}
            | {"checkpoint": str(path), "provenance": provenance(val.describe(), config.overrides)}
        )


def _restore_task(config: TrainConfig, val: Manifest, state: dict[str, Any], path: Path) -> Task:
    """Builds the task with the weights of a checkpoint.

    Raises:
        ConfigError: it measures nothing.
        CheckpointError: the weights are of another network, task or function.
    """
    task = start_task(config, val, resumes=True).task
    if not task.evaluates:
        raise ConfigError(f"function={config.function} makes an object without evaluate(batch)")
    checkpoint.check_run(state, path, config, task.name, val.classes)
    weights = averaged_weights(state["ema"]) if state["ema"] else state["model"]
    checkpoint.load_weights(task, weights, path)
    return task
