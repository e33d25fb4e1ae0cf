"""The loop over epochs, and the state of it that a checkpoint holds.

`fit` alternates two parts until all epochs are trained: `_train_epoch` takes the steps, saves at
times and stops at a signal; then the validation set is evaluated, and `_end_epoch` adds a row to
the history and saves. `restore` puts the state of a checkpoint back before `fit`.
"""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from dali_pipes.backends.auto.choices import likely
from dali_pipes.backends.auto.config import AutoConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import DaliPipesError
from dali_pipes.loader.loader import Loader
from dali_pipes.system.gpu_memory import release_if_short
from dali_pipes.training import checkpoint
from dali_pipes.training.checkpoint import CheckpointError
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.kept_options import describe_changes, options_to_keep
from dali_pipes.training.launch import RankVotes, all_gather, share_buffers
from dali_pipes.training.log.log import Log
from dali_pipes.training.log.meter import Meter, rates
from dali_pipes.training.network.build import title_of
from dali_pipes.training.optimizing.recipe import build_ema, build_optimizer, peak_lr
from dali_pipes.training.optimizing.schedule import lr_at
from dali_pipes.training.step import Forward, Readback, TrainStep
from dali_pipes.training.supervision import Heartbeat, Interrupt
from dali_pipes.training.tasks.build import count_outputs
from dali_pipes.training.tasks.evaluate import Evaluation, validate
from dali_pipes.training.tasks.monitor import choose_monitor
from dali_pipes.training.tasks.task import Task

LAST, BEST = "last.pt", "best.pt"
# of an optimizer, which hold for a whole run; its rate may change
_GROUP_OPTIONS = ("momentum", "nesterov", "betas", "weight_decay", "lr_scale")


class TrainingError(DaliPipesError):
    """Training cannot continue; the text says why."""


class Interrupted(Exception):
    """A signal asked the run to stop, and it has been saved."""


class Trainer:
    """One rank's part of a run.

    Args:
        fabric: from `launch`.
        task: as from `start_task`, with equal weights on every rank.
        loader: the loader of the training images; its global batches have batch_size × accumulate ×
            ranks images.
        val: the validation images; None: nothing is evaluated.
        folder: for checkpoints.

    Attributes:
        history: one row per epoch; docs/training.md describes it.
    """

    def __init__(
        self,
        config: TrainConfig,
        fabric: Any,
        task: Task,
        loader: Loader,
        val: Manifest | None,
        folder: Path,
    ):
        self.history: list[dict[str, Any]] = []
        self._config, self._fabric, self._loader, self._val, self._folder = (
            config,
            fabric,
            loader,
            val,
            folder,
        )
        self._has_evaluated = False
        self._meter, self._losses, self._votes = (
            Meter(loader.stats, fabric.device),
            Readback(fabric.device),
            RankVotes(fabric),
        )

        self._task, self._classes = task.to(fabric.device), loader.plan.manifest.classes
        self.monitor = choose_monitor(config, task, val is not None)
        self._optimizer = build_optimizer(config.optimizer, task.network)
        self._ema = build_ema(config, task)

        if config.model.compile:
            task.compile()
        model, optimizer = fabric.setup(Forward(task), self._optimizer)
        self._train_step = TrainStep(config, fabric, model, task, optimizer, self._ema)
        self._scaler = getattr(fabric.strategy.precision, "scaler", None)

        # dropout and stochastic depth draw other numbers on each rank
        torch.manual_seed(config.seed + 1 + fabric.global_rank)

    @property
    def step(self) -> int:
        """The next step, counted from the start of the run."""
        return (self._loader.epoch + 1) * len(self._loader) - self._loader.batches_left

    @property
    def evaluated(self) -> Task:
        """The task with the weights that are evaluated: their average, if there is one."""
        return self._ema.module if self._ema else self._task  # type: ignore[return-value]

    def fit(self, log: Log, interrupt: Interrupt, heartbeat: Heartbeat) -> None:
        """Trains to the end.

        last.pt is written after every epoch, every `checkpoint_every_s` seconds, and before the
        first evaluation; best.pt after the best epoch so far.

        Raises:
            Interrupted: a signal came, and the run has been saved.
            TrainingError: the loss is not finite.
        """
        while len(self.history) < self._config.epochs and not self.monitor.is_over(self.history):
            epoch = len(self.history)
            if self._loader.epoch == epoch:
                self._train_epoch(log, interrupt, heartbeat)

            # every rank evaluates and saves the same weights: DDP has let the running statistics
            # drift
            share_buffers(self._fabric, self._task, *([self._ema.module] if self._ema else []))
            self._end_epoch(epoch, self._evaluate(epoch, heartbeat, log), log)

            # a signal during the evaluation: the end of the epoch has been saved already
            if any(all_gather(self._fabric, interrupt.signal is not None)):
                raise Interrupted
        if len(self.history) < self._config.epochs:
            patience = self._config.patience
            later = "evaluation" if patience == 1 else f"{patience} evaluations"
            log.say(
                f"{self.monitor.name} was not better in the last {later}: the run ends after "
                f"{len(self.history)} epochs"
            )

    def _evaluate(self, epoch: int, heartbeat: Heartbeat, log: Log) -> Evaluation | None:
        """Evaluates, if it is the turn of this epoch."""
        due = epoch + 1 == self._config.epochs or (epoch + 1) % self._config.evaluate_every == 0
        if self._val is None or not self._task.evaluates or not due:
            return None
        # a mistake in the user's evaluate(), or a bad image, shows in the first evaluation, and
        # costs no epoch then
        if not self._has_evaluated:
            self._save(log, LAST)
        self._has_evaluated = True

        # validation has a loader of its own, with batches of another size
        release_if_short(self._fabric.device)
        evaluation = validate(
            self._validation_config(self._val),
            self.evaluated,
            self._val,
            self._fabric,
            heartbeat,
        )
        release_if_short(self._fabric.device)
        return evaluation

    def _validation_config(self, val: Manifest) -> TrainConfig:
        """With the loader that training has found to be best, if that was left to it."""
        config, loader = self._config, self._config.loader
        if not isinstance(loader, AutoConfig):
            return config
        transform = getattr(config, config.eval_with)
        learned = self._loader.state_dict().get("loader", "")
        best = likely(loader, self._fabric.device, transform, val, learned)
        return replace(config, loader=best)

    def _train_epoch(self, log: Log, interrupt: Interrupt, heartbeat: Heartbeat) -> None:
        epoch, saved = self._loader.epoch, time.monotonic()
        steps = self._config.epochs * len(self._loader)
        peak = peak_lr(self._config.optimizer, self._loader.plan.global_batch_size)
        every_s = (
            math.inf if self._config.checkpoint_every_s is None else self._config.checkpoint_every_s
        )

        values = self.monitor.values(self.history)

        # rows of the log whose loss is still on the GPU, see Readback
        taken: list[dict[str, Any]] = []
        self._meter.start()

        for batch in heartbeat.watch(self._meter.watch(self._loader)):
            step = self.step - 1  # the loader counts a batch as it delivers it
            lr = lr_at(self._config, step, len(self._loader), peak, values, self.monitor.mode)
            taken.append({"epoch": epoch, "step": step, "lr": lr})
            self._record_losses(self._losses.push(self._train_step(batch, lr)), taken, log)

            log.live(
                epoch,
                self._config.epochs,
                step,
                steps,
                len(self._loader),
                self._meter,
                self._fabric.world_size,
            )

            # all ranks save at one step, and rank 0 has the clock
            due = self._fabric.global_rank == 0 and time.monotonic() - saved > every_s
            stop, save = self._votes.count(interrupt.signal is not None, due)
            # after its last step the epoch is evaluated first, and saved then
            if (stop or save) and self._loader.epoch == epoch:
                self._record_losses(self._losses.drain(), taken, log)
                self._meter.stop()
                self._save(log, LAST)
                if stop:
                    raise Interrupted
                saved = time.monotonic()
                self._meter.start()

        self._record_losses(self._losses.drain(), taken, log)
        self._meter.stop()

    def close(self) -> None:
        """Waits for the communication between the ranks that is still pending."""
        self._votes.close()

    def _record_losses(self, losses: list[float], taken: list[dict[str, Any]], log: Log) -> None:
        # the losses that have arrived are those of the first steps in `taken`
        self._meter.add_losses(losses)
        for loss in losses:
            row = taken.pop(0) | {"loss": loss}
            log.step(row)

            if not math.isfinite(loss):
                # nothing has been saved since: a checkpoint is written only after all its losses
                saved = self._folder / LAST
                resumed = (
                    f"resume from {saved}"
                    if saved.is_file()
                    else "nothing is saved yet: start again"
                )
                raise TrainingError(
                    f"the loss is {loss} at epoch {row['epoch'] + 1}, step {row['step']}, "
                    f"with a learning rate of {row['lr']:.3g}; "
                    f"{resumed} with a lower optimizer.lr, or warm up longer"
                )

    def _end_epoch(self, epoch: int, evaluation: Evaluation | None, log: Log) -> None:
        figures = self._meter.over_ranks(self._fabric)
        row = {"epoch": epoch, **rates(figures), **figures}
        measured = evaluation.columns() if evaluation else {}
        self.history.append(row | measured)

        self._meter = Meter(self._loader.stats, self._fabric.device)
        log.epochs(self.history, self.step, self._config.epochs)
        if evaluation:
            log.classes(self._classes, evaluation.by_class, evaluation.confusion)

        self._save(log, LAST, *[BEST] if self.monitor.is_best(self.history) else [])

        # after saving, so that nothing is lost
        if taken := sorted(row.keys() & measured.keys()):
            raise TrainingError(
                f"evaluate() returns {taken[0]}, which is a column of epochs.csv already; give it "
                "another name"
            )
        if evaluation and self.monitor.name not in self.history[-1]:
            raise TrainingError(
                f"monitor={self.monitor.name}, and evaluate() returns "
                f"{', '.join(evaluation.values)}; name one of them, with monitor_mode=max or min, "
                f"and resume from {self._folder / LAST}"
            )

    def _save(self, log: Log, *names: str) -> None:
        # first: a resume goes on behind the checkpoint, and nobody would write the rows before it
        log.flush()
        # on every rank, since it gathers from all of them
        state = self._state()
        if self._fabric.global_rank == 0:
            for name in names:
                checkpoint.save(state, self._folder / name)

    def _state(self) -> dict[str, Any]:
        """Returns the state needed to resume; every rank contributes to it."""
        return {
            "name": self._config.function or title_of(self._config.model),
            "model_options": self._config.model.options,
            "task": self._task.name,
            "classes": self._classes,
            "outputs": count_outputs(self._loader.plan.manifest),
            "channels": self._config.transform.channels,
            "options": options_to_keep(self._config),
            "model": self._task.state_dict(),
            "ema": self._ema.state_dict() if self._ema else None,
            "optimizer": self._optimizer.state_dict(),
            "trained": self._trained(),
            "scaler": self._scaler.state_dict() if self._scaler else None,
            "loader": self._loader.state_dict(),
            "random": all_gather(self._fabric, _random_state()),
            "history": self.history,
            "meter": self._meter.over_ranks(self._fabric),
        }

    def restore(self, state: dict[str, Any], path: Path) -> list[str]:
        """Resumes from a checkpoint, on any number of ranks with the same global batch.

        Returns:
            what the log says of options that have changed, a sentence each.

        Raises:
            CheckpointError: it is of another model, other classes, or other options that it depends
                on.
            ConfigError: the images, their order or the transform have changed since.
        """
        checkpoint.check_run(state, path, self._config, self._task.name, self._classes)
        if bool(self._ema) != bool(state["ema"]):
            kept = "an" if state["ema"] else "no"
            mismatch = (
                f"that run kept {kept} average of its weights, and ema_decay is "
                f"{self._config.ema_decay}"
            )
            raise CheckpointError(f"{path}: {mismatch}; resume with the options of that run")

        # first, since it is what refuses other images, before anything is changed
        self._loader.load_state_dict(state["loader"])
        checkpoint.load_weights(self._task, state["model"], path)
        if self._ema:
            self._ema.load_state_dict(state["ema"])

        self._check_optimizer(state, path)
        try:
            self._optimizer.load_state_dict(state["optimizer"])
        except ValueError as error:
            raise CheckpointError(
                f"{path}: of another optimizer ({error}); resume with the options of that run"
            ) from None
        if self._scaler and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])

        # with another number of ranks dropout goes on with fresh random numbers
        if len(state["random"]) == self._fabric.world_size:
            _set_random_state(state["random"][self._fabric.global_rank])
        self.history = state["history"]
        self._meter.load(state["meter"], self._fabric)
        return describe_changes(state["options"], self._config)

    def _trained(self) -> list[list[str]]:
        """Returns the names of the parameters of each group, which the optimizer's own state
        numbers.
        """
        names = {id(each): name for name, each in self._task.network.named_parameters()}
        groups = self._optimizer.param_groups
        return [[names[id(each)] for each in group["params"]] for group in groups]

    def _check_optimizer(self, state: dict[str, Any], path: Path) -> None:
        def refuse(what: str) -> NoReturn:
            raise CheckpointError(
                f"{path}: of another optimizer ({what}); resume with the options of that run"
            )

        name = self._config.optimizer.name
        if (then := state["options"]["optimizer.name"]) != name:
            refuse(f"{then} there, and {name} now")

        # PyTorch would take the saved options in place of those that are given now
        pairs = zip(state["optimizer"]["param_groups"], self._optimizer.param_groups, strict=False)
        for there, here in pairs:
            for option in _GROUP_OPTIONS:
                if there.get(option) != here.get(option):
                    refuse(f"{option} is {there.get(option)} there, and {here.get(option)} now")

        # the same numbers of parameters may be other ones: then each would get another's momentum
        groups_now = {name: place for place, each in enumerate(self._trained()) for name in each}
        groups = state.get("trained", self._trained())
        groups_then = {name: place for place, each in enumerate(groups) for name in each}
        for one in {**groups_then, **groups_now}:
            if one not in groups_then:
                refuse(f"{one} is trained now, and was not")
            if one not in groups_now:
                refuse(f"{one} was trained, and is not now")
            if groups_then[one] != groups_now[one]:
                refuse(f"{one} has another weight_decay or lr_scale now")


def _random_state() -> dict[str, Any]:
    """Returns the random states that dropout and stochastic depth draw from.

    The loader has none: its draws are functions of the seed, the epoch and the sample.
    """
    return {
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
