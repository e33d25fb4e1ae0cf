"""How every script starts: compose the configuration, run the job, and end user mistakes in one line."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dali_pipes.config import register
from dali_pipes.errors import DaliPipesError

CONF = str(Path(__file__).resolve().parents[1] / "conf")


def run(config_name: str, job: Callable[[Any], None]) -> None:
    """Composes conf/`config_name`.yaml with the command line and calls `job` with the typed config."""

    def task(config: DictConfig) -> None:
        try:
            job(OmegaConf.to_object(config))
        except (DaliPipesError, OmegaConfBaseException) as error:
            stop(error)

    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # lets errors in the command line come up to here
    try:
        hydra.main(version_base="1.3", config_path=CONF, config_name=config_name)(task)()
    except (HydraException, OmegaConfBaseException) as error:
        stop(error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error)


def stop(error: BaseException) -> None:
    """Prints what is wrong and ends with status 2."""
    lines = str(error).splitlines()
    told = [
        line.strip()
        for line in lines
        if line.strip() and not line.strip().startswith(("full_key", "object_type", "reference_type"))
    ]
    keep = lines if isinstance(error, DaliPipesError) else told[:1]
    keys = "".join(f" ({line.strip()})" for line in lines if line.strip().startswith("full_key"))
    hint = "" if isinstance(error, DaliPipesError) else f"{keys}; --cfg job prints every option"
    print("error: " + "\n".join(keep) + hint, file=sys.stderr)
    sys.exit(2)
