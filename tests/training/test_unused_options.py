import pytest

from dali_pipes.training.config import (
    MixingConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from dali_pipes.training.unused_options import describe_unused


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schedule": ScheduleConfig(cooldown=0.5)}, ["schedule.cooldown has no effect with "]),
        ({"schedule": ScheduleConfig(name="wsd", cooldown=0.5)}, []),
        (
            {"schedule": ScheduleConfig(name="step", patience=3)},
            ["schedule.patience has no effect"],
        ),
        ({"schedule": ScheduleConfig(name="step", decay_epochs=3, decay_rate=0.5)}, []),
        (
            {"optimizer": OptimizerConfig(name="adamw", momentum=0.5)},
            ["optimizer.momentum has no "],
        ),
        ({"optimizer": OptimizerConfig(beta2=0.5)}, ["optimizer.beta2 has no effect with "]),
        ({"optimizer": OptimizerConfig(momentum=0.5, nesterov=True)}, []),
        ({"mixing": MixingConfig(probability=0.5)}, ["mixing.probability has no effect without"]),
        ({"mixing": MixingConfig(probability=0.5, mixup_alpha=1)}, []),
        ({"validation": "none", "evaluate_every": 2}, ["evaluate_every has no effect with"]),
        ({"epochs": 5}, ["the warm-up of 5 epochs takes all of the 5: the learning rate only"]),
        ({"epochs": 6}, []),
        ({}, []),
    ],
)
def test_what_has_no_effect_is_named(given, said):
    found = describe_unused(TrainConfig(**given))
    assert len(found) == len(said)
    assert all(each.startswith(f"Note: {text}") for each, text in zip(found, said, strict=True))
