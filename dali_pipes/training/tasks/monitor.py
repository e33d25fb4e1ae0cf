"""Which epoch is the best, and whether training goes on: functions of the history alone, so that a
resumed run decides as one that was never stopped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dali_pipes.errors import ConfigError
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.tasks.task import Task

TRAIN_LOSS = "loss"


@dataclass(frozen=True, slots=True)
class Monitor:
    """
    Attributes:
        name: of a measurement in the rows of the history; None: no epoch is the best.
        mode: "max" or "min", what is better.
        patience: as the option.
    """

    name: str | None
    mode: str = "max"
    patience: int | None = None

    def is_best(self, history: Sequence[dict[str, Any]]) -> bool:
        """Whether the last epoch was measured, and is better than all before."""
        return bool(history) and self.best(history) is history[-1]

    def best(self, history: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """Returns the row of the best epoch, the first of equal ones; None: none was measured."""
        pairs = [(self.value(row), row) for row in history]
        # a NaN is no value
        measured = [(value, row) for value, row in pairs if value is not None and value == value]
        if not measured:
            return None
        choose = max if self.mode == "max" else min
        return choose(measured, key=lambda each: each[0])[1]

    def values(self, history: Sequence[dict[str, Any]]) -> list[float]:
        """Returns what was measured of it, in the order of the evaluations."""
        return [value for row in history if (value := self.value(row)) is not None]

    def value(self, row: dict[str, Any]) -> float | None:
        """Returns what a row has of it; None: it was not measured."""
        return None if self.name is None else row.get(self.name)

    def is_nan(self, history: Sequence[dict[str, Any]]) -> bool:
        """Whether it was measured, and was never a number."""
        return bool(self.values(history)) and not self.best(history)

    def is_over(self, history: Sequence[dict[str, Any]]) -> bool:
        """Whether the last `patience` evaluations were not better than the best before them."""
        if self.patience is None or not (best := self.best(history)):
            return False
        later = [row for row in history if row["epoch"] > best["epoch"]]
        return sum(self.value(row) is not None for row in later) >= self.patience


def choose_monitor(config: TrainConfig, task: Task, has_val: bool) -> Monitor:
    """Returns what the options name, or what the task proposes.

    Raises:
        ConfigError: it is not measured, or it is not known which values are better.
    """
    evaluated = has_val and task.evaluates
    name = config.monitor or (task.monitored if evaluated else None)
    if name is None:
        follows = {
            "patience": config.patience is not None,
            "schedule=plateau": config.schedule.name == "plateau",
        }
        if asked := [option for option, is_given in follows.items() if is_given]:
            raise ConfigError(
                f"{asked[0]} is for what an evaluation measures, and there is none; set "
                "monitor=loss for the training loss, or validation=split:0.1"
            )
        return Monitor(None)

    if not evaluated and name != TRAIN_LOSS:
        why = "validation=none" if not has_val else f"{config.function} has no evaluate()"
        raise ConfigError(
            f"monitor={name} is of an evaluation, and {why}; set monitor=loss for the training loss"
        )
    known = task.directions
    if name not in known and not config.function:
        raise ConfigError(
            f"monitor={name} is not measured for {task.name}; what is: {', '.join(known)}"
        )
    mode = config.monitor_mode or known.get(name)
    if name in known and mode != known[name] and not config.function:
        better = "less" if known[name] == "min" else "more"
        raise ConfigError(
            f"monitor_mode={mode} would keep the worst epoch: {better} of {name} is better; leave "
            "monitor_mode out"
        )
    if mode is None:
        raise ConfigError(
            f"monitor={name}: whether more or less of it is better is not known; set "
            "monitor_mode=max or monitor_mode=min"
        )
    return Monitor(name, mode, config.patience)
