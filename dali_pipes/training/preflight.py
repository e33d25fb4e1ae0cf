"""Whether a run can fit into memory, before it begins."""

import os

from dali_pipes.data.manifest import Manifest
from dali_pipes.memory import check_fits, free_memory, loader_needs, model_needs, saved_bytes
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.recipe import build_network


def check_memory(config: TrainConfig, images: Manifest, programs: int = 1) -> None:
    """Only what is certain is counted: what passes may still run out of memory later.

    Args:
        programs: so many of them at once on this machine.

    Raises:
        ConfigError: it cannot fit; the text has the numbers.
    """
    module = build_network(config.model, len(images.classes))
    states = 2 if config.optimizer.name == "adamw" else int(config.optimizer.momentum > 0)
    half = config.precision != "fp32"
    kept = (
        0
        if config.model.compile
        else saved_bytes(module, config.batch_size, max(config.transform.every_size)) // (2 if half else 1)
    )
    needs = [
        *loader_needs(config.loader, config.transform, config.batch_size * config.accumulate, images.sizes),
        *model_needs(module, states, config.ema_decay is not None, config.batch_size, kept),
    ]
    check_fits(needs, free_memory(programs * int(os.environ.get("LOCAL_WORLD_SIZE", 1))))
