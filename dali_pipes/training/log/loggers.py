"""The programs that collect the figures of runs: TensorBoard, W&B and MLflow, by Lightning's
loggers.

W&B and MLflow are imported only if `logger` names them. Without a server they write into the run's
folder, where loggers.json has the number of the run that a resumed one goes on with.
"""

import inspect
import json
import os
import uuid
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import Logger
from lightning.fabric.loggers.tensorboard import TensorBoardLogger

from dali_pipes.errors import ConfigError
from dali_pipes.system.files import replacing, to_plain, to_yaml
from dali_pipes.training.config import TrainConfig, logger_names

SUCCESS, FAILED, KILLED = "success", "failed", "KILLED"  # Lightning's words, and one of MLflow's
_PROJECT, _IDS = "dali_pipes", "loggers.json"
_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow"}


def check_loggers(config: TrainConfig) -> None:
    """Checks that the packages of the loggers are installed, and that they take their options.

    Raises:
        ConfigError: one is not, or does not.
    """
    names = logger_names(config.logger)
    for name in names:
        package = _PACKAGES.get(name)
        if package and not find_spec(package):
            raise ConfigError(f"logger={name} needs the package {package}; pip install {package}")

    for name, options in config.logger_options.items():
        if name not in names or name not in OPEN:
            raise ConfigError(f"logger_options.{name} is for a logger that logger= does not name")
        taken = _arguments_of(name)
        if wrong := [option for option in options if option not in taken]:
            raise ConfigError(
                f"logger_options.{name}.{wrong[0]}: Lightning's logger has no such argument; it "
                f"takes {', '.join(sorted(taken))}"
            )


def open_loggers(config: TrainConfig, folder: Path, step: int) -> list[Logger]:
    """Opens the loggers of a run, and gives them its options.

    Args:
        folder: the run's; loggers of an earlier process in it are continued.
        step: the step that the run continues with.

    Raises:
        ConfigError: one of them cannot be opened, such as W&B without an account.
    """
    loggers = list[Logger]()
    for name in logger_names(config.logger):
        if name not in OPEN:
            continue
        try:
            logger = OPEN[name](config, folder, step, config.logger_options.get(name, {}))
        # any error of another library: of a server, an account, a database
        except Exception as error:
            raise ConfigError(f"logger={name}: {' '.join(str(error).split())}") from error
        loggers.append(logger)
    return loggers


def close_logger(logger: Any, status: str) -> None:
    """Writes what the logger still holds, and ends its run with SUCCESS, FAILED or KILLED."""
    name = type(logger).__name__
    if name == "MLFlowLogger":
        import mlflow

        # Lightning's logger does not wait for its own queue
        mlflow.flush_async_logging()
    logger.finalize(status)
    if name == "WandbLogger":
        # Lightning leaves it open, and the next run of a sweep would log into it
        logger.experiment.finish(exit_code=0 if status == SUCCESS else 1)


class _TensorBoard(TensorBoardLogger):
    """Writes by tensorboardX: PyTorch's writer, which Lightning takes where TensorBoard is
    installed, loads TensorFlow.
    """

    @property
    def experiment(self) -> Any:
        if self._experiment is None:
            from tensorboardX import SummaryWriter

            self._experiment = SummaryWriter(self.log_dir, **self._kwargs)
        return self._experiment


def _open_tensorboard(
    config: TrainConfig, folder: Path, step: int, options: dict[str, Any]
) -> Logger:
    # TensorBoard hides the events from `purge_step` on, of an earlier process
    logger = _TensorBoard(folder, name="", version="", **{"purge_step": step} | options)
    # indented text is code in Markdown
    lines = [f"    {line}" for line in to_yaml(config).splitlines()]
    logger.experiment.add_text("options", "\n".join(lines), step)
    return logger


def _open_wandb(config: TrainConfig, folder: Path, step: int, options: dict[str, Any]) -> Logger:
    from lightning.pytorch.loggers import WandbLogger

    ours = {
        "mode": os.environ.get("WANDB_MODE", "offline"),
        "project": os.environ.get("WANDB_PROJECT", _PROJECT),
        "name": folder.name,
        "id": _read_ids(folder).get("wandb", uuid.uuid4().hex[:8]),
        # it would put its own streams before ours, which have the live line and train.log
        "settings": {"console": "off"},
    }
    logger = WandbLogger(save_dir=folder, **ours | options)
    logger.log_hyperparams(to_plain(config))  # this also starts it
    _write_id(folder, "wandb", logger.experiment.id)
    return logger


def _open_mlflow(config: TrainConfig, folder: Path, step: int, options: dict[str, Any]) -> Logger:
    from lightning.pytorch.loggers import MLFlowLogger

    ours: dict[str, Any] = {
        "experiment_name": os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT),
        "run_name": folder.name,
        "run_id": (known := _read_ids(folder).get("mlflow")),
        "synchronous": False,  # training does not wait for the database
    }
    # MLflow 3 refuses folders of files, its store until then
    if server := os.environ.get("MLFLOW_TRACKING_URI"):
        ours["tracking_uri"] = server
    elif "tracking_uri" not in options:
        ours["tracking_uri"] = f"sqlite:///{folder.absolute() / 'mlflow.db'}"
        ours["artifact_location"] = str(folder.absolute() / "mlflow")

    logger = MLFlowLogger(**ours | options)
    if known:
        # its options cannot be changed any more
        logger.experiment.update_run(known, status="RUNNING")
    else:
        logger.log_hyperparams(to_plain(config))
        _write_id(folder, "mlflow", str(logger.run_id))
    return logger


OPEN: dict[str, Callable[[TrainConfig, Path, int, dict[str, Any]], Logger]] = {
    "tensorboard": _open_tensorboard,
    "wandb": _open_wandb,
    "mlflow": _open_mlflow,
}


def _arguments_of(name: str) -> set[str]:
    """Returns the arguments that a logger takes, without those that the run gives it."""
    if name == "tensorboard":
        from tensorboardX import SummaryWriter

        return {*inspect.signature(SummaryWriter).parameters} - {
            *("logdir", "log_dir", "purge_step", "kwargs")
        }
    if name == "wandb":
        import wandb
        from lightning.pytorch.loggers import WandbLogger

        taken = {*inspect.signature(WandbLogger).parameters} | {
            *inspect.signature(wandb.init).parameters
        }
        return taken - {"save_dir", "dir", "version", "experiment", "kwargs"}
    from lightning.pytorch.loggers import MLFlowLogger

    return {*inspect.signature(MLFlowLogger).parameters} - {"save_dir"}


def _read_ids(folder: Path) -> dict[str, str]:
    file = folder / _IDS
    return json.loads(file.read_text()) if file.exists() else {}


def _write_id(folder: Path, name: str, number: str) -> None:
    ids = _read_ids(folder) | {name: number}
    with replacing(folder / _IDS) as aside:
        aside.write_text(json.dumps(ids))
