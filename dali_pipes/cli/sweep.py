"""What a job must know of Hydra's sweep (`-m`) that it is a part of: folders and numbers."""

import os
import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from dali_pipes.errors import ConfigError


def is_sweep() -> bool:
    """Returns whether this job is one of a sweep."""
    return bool(HydraConfig.get().mode == RunMode.MULTIRUN)


def sweep_folder() -> Path | None:
    """Returns the folder of the sweep that this job belongs to; None without one."""
    return Path(HydraConfig.get().sweep.dir) if is_sweep() else None


def job_number(option: str) -> int | None:
    """Returns this job's number within a sweep, for the name of what it writes.

    Returns None if there is no sweep, or if the sweep gives each job its own value of `option`.
    """
    if not is_sweep():
        return None

    # commas and functions of Hydra, such as choice(…), are values of a sweep
    words = (word for word in sys.argv[1:] if word.startswith(f"{option}="))
    if any("," in word or "(" in word for word in words):
        return None
    return int(HydraConfig.get().job.num)


def job_folder() -> Path | None:
    """Returns the folder of this job within a sweep; None without a sweep.

    Raises:
        ConfigError: torchrun started the sweep, which would run once on every rank.
    """
    if not is_sweep():
        return None
    # torchrun sets it in all of its processes
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise ConfigError(
            "-m under torchrun would sweep on every rank; start each run with torchrun, or "
            "sweep with cluster=slurm"
        )
    return Path(HydraConfig.get().runtime.output_dir)


def search_mode() -> str | None:
    """Returns "max" or "min", what a sweeper such as Optuna's searches for; None: none searches."""
    sweeper = HydraConfig.get().sweeper
    if not is_sweep() or "direction" not in sweeper:
        return None
    direction = getattr(sweeper.direction, "name", sweeper.direction)
    modes = {"maximize": "max", "minimize": "min"}
    if direction not in modes:
        raise ConfigError(
            f"hydra.sweeper.direction is {direction}; a run has one value, monitor: set maximize "
            "or minimize"
        )
    return modes[direction]
