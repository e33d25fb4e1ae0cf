"""Options that were set and have no effect beside the others: the log names them."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from dali_pipes.options import default_of
from dali_pipes.training.config import NONE, TrainConfig

# what each option of a group is for: the names that the group may have
_SCHEDULES = {
    "min_lr": ("cosine", "linear", "wsd", "step", "exponential", "plateau"),
    "decay_epochs": ("step", "exponential"),
    "decay_rate": ("step", "exponential", "plateau"),
    "patience": ("plateau",),
    "cooldown": ("wsd",),
}
_OPTIMIZERS = {
    "momentum": ("sgd",),
    "nesterov": ("sgd",),
    "beta1": ("adamw", "lamb"),
    "beta2": ("adamw", "lamb"),
}


def describe_unused(config: TrainConfig) -> list[str]:
    """Returns a sentence for each option that is not at its default and has no effect."""
    found = [
        *_of_other_names("schedule", config.schedule, _SCHEDULES),
        *_of_other_names("optimizer", config.optimizer, _OPTIMIZERS),
    ]
    mixing = config.mixing
    if mixing.probability != 1 and not (mixing.mixup_alpha or mixing.cutmix_alpha):
        found.append("mixing.probability has no effect without mixup_alpha or cutmix_alpha")
    if config.evaluate_every != 1 and config.validation == NONE:
        found.append("evaluate_every has no effect with validation=none")
    if config.warmup_epochs >= config.epochs:
        found.append(
            f"the warm-up of {config.warmup_epochs:g} epochs takes all of the {config.epochs}: the "
            "learning rate only rises, and schedule has no effect"
        )
    return [f"Note: {each}" for each in found]


def _of_other_names(group: str, options: Any, names: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for declared in fields(options):
        used = names.get(declared.name, (options.name,))
        if options.name not in used and getattr(options, declared.name) != default_of(declared):
            yield (
                f"{group}.{declared.name} has no effect with {group}={options.name}; it is for "
                f"{', '.join(used)}"
            )
