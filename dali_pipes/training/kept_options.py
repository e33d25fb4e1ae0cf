"""The options of a run that its checkpoint keeps, so that a change of them is named: when the run
goes on, and when its weights are used.

Options that a run cannot go on without are refused where they are known: those of the network
(checkpoint.py), of the optimizer (trainer.py) and of the loader (loader/resume.py).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dali_pipes.training.config import TrainConfig, split_share

_OF_RUN = (
    *("validation", "seed", "eval_with", "monitor", "monitor_mode", "patience", "evaluate_every"),
    *("epochs", "warmup_epochs", "precision", "label_smoothing", "ema_decay"),
)
_OF_OPTIMIZER = ("name", "lr", "lr_batch_size", "clip_grad_norm")


def options_to_keep(config: TrainConfig) -> dict[str, Any]:
    """Returns options by their full names, with values that JSON has."""
    groups = {
        "": {name: getattr(config, name) for name in _OF_RUN},
        "optimizer.": {name: getattr(config.optimizer, name) for name in _OF_OPTIMIZER},
        "schedule.": asdict(config.schedule),
        "task.": asdict(config.task),
        "transform.": {"mean": config.transform.mean, "std": config.transform.std},
    }
    flat = {group + name: value for group, each in groups.items() for name, value in each.items()}
    # a checkpoint gives tuples back as lists
    kept: dict[str, Any] = json.loads(json.dumps(flat))
    return kept


def describe_changes(kept: Mapping[str, Any], config: TrainConfig) -> list[str]:
    """Returns a sentence for each option that a run goes on with and did not have before.

    Args:
        kept: `options_to_keep` of the checkpoint.
    """
    return [
        f"Note: {name} is {_spell(value)} from here on, and was {_spell(kept[name])} before"
        for name, value in options_to_keep(config).items()
        if name in kept and not _same(kept[name], value)
    ]


def _same(one: Any, other: Any) -> bool:
    shares = [split_share(each) if isinstance(each, str) else None for each in (one, other)]
    return one == other or (shares[0] is not None and shares[0] == shares[1])


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
