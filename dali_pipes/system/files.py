"""Files that runs write."""

import datetime
from pathlib import Path
from typing import Any


def new_folder(out: Path) -> Path:
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = out.absolute() / stamp
    for number in range(2, 100):
        if not folder.exists():
            break
        folder = folder.with_name(f"{stamp}_{number}")
    folder.mkdir(parents=True)
    return folder


def to_yaml(config: Any) -> str:
    """Every option of a job, as the composed configuration has it."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(config))
