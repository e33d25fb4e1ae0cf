"""Whether a run can fit into memory, before it begins."""

import os

from dali_pipes.manifest import Manifest
from dali_pipes.memory import activation_needs, check_fits, free_memory, loader_needs, weight_needs
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.recipe import build_network


def check_memory(config: TrainConfig, images: Manifest) -> None:
    """Only what is certain is counted: what passes may still run out of memory later.

    Raises:
        ConfigError: it cannot fit; the text has the numbers.
    """
    module = build_network(config.model, len(images.classes))
    states = 2 if config.optimizer.name == "adamw" else 1
    needs = [
        *loader_needs(config.loader, config.transform, config.batch_size * config.accumulate, images.sizes),
        *weight_needs(module, states, config.ema_decay is not None),
    ]
    if not config.model.compile:  # which may compute again instead of keeping
        needs += activation_needs(module, config.batch_size, config.transform.size, config.precision != "fp32")
    check_fits(needs, free_memory(int(os.environ.get("LOCAL_WORLD_SIZE", 1))))
