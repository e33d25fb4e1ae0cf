"""Atomic checkpoints: written to a temporary file, flushed to disk, then renamed.

`save` and `load` are for this program's own checkpoints; `read` takes any file of torch.save.

A file may come from a stranger. What it names is compared with what the command line names, and
nothing of it is imported, called or opened.
"""

import pickle
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dali_pipes.data.sets.classes import describe_difference
from dali_pipes.errors import DaliPipesError
from dali_pipes.system.files import open_replacing
from dali_pipes.training.config import ModelConfig, TrainConfig

FORMAT = 1
# what is compared with the run that reads a checkpoint
_FACTS = ("name", "model_options", "task", "classes", "channels", "options", "model", "ema")
CLASSIFICATION, OWN = "classification", "own"
_MAX_LISTED = 20  # classes of a list


class CheckpointError(DaliPipesError):
    """A checkpoint that cannot be written or used; the text names it and says why."""


def save(state: dict[str, Any], path: Path) -> None:
    """Replaces the checkpoint at `path`, as a whole or not at all.

    Raises:
        CheckpointError: the disk is full, or the like; the previous file is unchanged.
    """
    try:
        with open_replacing(path) as file:
            torch.save({"format": FORMAT, **state}, file)
    except (OSError, RuntimeError) as error:  # PyTorch's writer raises RuntimeError on a full disk
        kept = f"; {path} is unchanged" if path.exists() else ""
        # what its writer says of a write that is cut short: caffe2/serialize/inline_container.cc
        is_short = "unexpected pos" in str(error)
        reason = "the disk took only a part of it, and may be full" if is_short else _reason(error)
        raise CheckpointError(
            f"{path}: the checkpoint could not be written ({reason}){kept}"
        ) from None


def read(path: Path) -> Any:
    """Returns what torch.save wrote, with tensors on the CPU. No code in it runs (weights_only).

    Raises:
        CheckpointError: there is no such file, or it is damaged.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such checkpoint") from None
    except pickle.UnpicklingError as error:
        # PyTorch's own message proposes to run the code of the file
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            raise CheckpointError(
                f"{path} holds other objects than tensors ({found[1]}), and reading those could "
                "run code; save what model.state_dict() returns, with torch.save or as safetensors"
            ) from None
        raise CheckpointError(f"{path}: not a whole checkpoint; use another one") from None
    except Exception as error:  # a damaged file can raise any exception
        raise CheckpointError(
            f"{path}: not a whole checkpoint ({_reason(error)}); use another one"
        ) from None


def is_ours(state: Any, path: Path) -> bool:
    """Returns whether `save` wrote this.

    Raises:
        CheckpointError: it says so, and lacks some of what a run of ours saves.
    """
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        return False
    if missing := [name for name in _FACTS if name not in state]:
        raise CheckpointError(
            f"{path}: not a whole checkpoint (it lacks {', '.join(missing)}); use another one"
        )
    if not isinstance(state["name"], str) or not isinstance(state["model_options"], Mapping):
        raise CheckpointError(
            f"{path}: not a whole checkpoint (it names no network); use another one"
        )
    return True


def load(path: Path) -> dict[str, Any]:
    """Returns the state of a run, with tensors on the CPU.

    Raises:
        CheckpointError: there is no such file, it is damaged, or this program did not write it.
    """
    state = read(path)
    if not is_ours(state, path):
        raise CheckpointError(
            f"{path}: not a checkpoint of format {FORMAT}, which this version writes and reads"
        )
    return state


def check_run(
    state: dict[str, Any], path: Path, config: TrainConfig, task: str, classes: Sequence[str]
) -> None:
    """Raises a CheckpointError unless the weights are of this task, of the user's function if it
    has one, and otherwise of this network and for these images.
    """
    kept = state["task"]
    own = state["name"] if kept == OWN else None
    if own != config.function:
        instead = f"set {_option('function', own)}" if own else "leave out function="
        made = f"of function={own}" if own else f"of the network {state['name']}"
        raise CheckpointError(
            f"{path}: {made}, and function is {config.function or 'not given'}; {instead}"
        )
    if kept != task:
        raise CheckpointError(
            f"{path}: of the task {kept}, and the labels of these images are for {task}; "
            f"name images with labels for {kept}"
        )
    if not config.function:
        check_same(state, path, config.model, classes, config.transform.channels)


def load_weights(module: nn.Module, weights: dict[str, Any], path: Path) -> None:
    """Raises a CheckpointError unless the weights are this module's."""
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path}: not the weights of this network ({' '.join(str(error).split())[:300]})"
        ) from None


def check_same(
    state: dict[str, Any], path: Path, model: ModelConfig, classes: Sequence[str], channels: int
) -> None:
    """Raises a CheckpointError unless the weights are for this model, these classes and images of
    this many channels.
    """
    if state["name"] != (name := model.function or model.name):
        option = "function" if ":" in state["name"] else "name"
        raise CheckpointError(
            f"{path}: of {state['name']}, but model.{'function' if model.function else 'name'} is "
            f"{name}; set {_option(f'model.{option}', state['name'])}"
        )

    if (options := state["model_options"]) != model.options:
        raise CheckpointError(
            f"{path}: the network was built with {_arguments(options)}, and model.options is "
            f"{_arguments(model.options)}; set {_option('model.options', _arguments(options))}"
        )

    if (trained := state["channels"]) != channels:
        raise CheckpointError(
            f"{path}: of images of {'one channel' if trained == 1 else 'three channels'}, and "
            f"transform.channels is {channels}; set transform.channels={trained}, with the mean "
            "and std of that run"
        )

    if state["classes"] != classes:
        lists = f"it has {_list(state['classes'])}, and the images {_list(classes)}"
        same = "data.classes=[…] gives the images the checkpoint's"
        raise CheckpointError(
            f"{path} and the images: {describe_difference(state['classes'], classes)} "
            f"({lists}); {same}"
        )


def _option(name: str, value: str) -> str:
    """Returns an option as one word of a shell; a stranger's value may be anything."""
    shown = "".join(each if each.isprintable() else "?" for each in value)
    return shlex.quote(f"{name}={shown}")


def _arguments(options: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{name}: {value}' for name, value in options.items())}}}"


def _list(classes: Sequence[str]) -> str:
    more = f", … {len(classes):,} in all" if len(classes) > _MAX_LISTED else ""
    return f"[{', '.join(classes[:_MAX_LISTED])}{more}]"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
