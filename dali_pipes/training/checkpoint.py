"""Atomic checkpoints: written to a temporary file, flushed to disk, then renamed."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dali_pipes.errors import DaliPipesError
from dali_pipes.system.files import replacing
from dali_pipes.training.config import ModelConfig
from dali_pipes.training.data import difference

FORMAT = 1


class CheckpointError(DaliPipesError):
    """A checkpoint that cannot be written or used; the text names it and says why."""


def save(state: dict[str, Any], path: Path) -> None:
    """Replaces `path`, at once and as a whole.

    Raises:
        CheckpointError: it cannot be written, as on a full disk; the previous file is unchanged.
    """
    try:
        with replacing(path) as aside, aside.open("wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        _flush_folder(path.parent)
    except (OSError, RuntimeError) as error:  # PyTorch's writer raises RuntimeError on a full disk
        kept = f"; {path} is unchanged" if path.exists() else ""
        raise CheckpointError(f"{path}: the checkpoint could not be written ({_reason(error)}){kept}") from None


def load(path: Path) -> dict[str, Any]:
    """The state, on the CPU. Nothing in the file is executed (weights_only).

    Raises:
        CheckpointError: no such file, not a checkpoint of this program, or damaged.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such checkpoint") from None
    except Exception as error:  # a damaged file can raise any exception
        raise CheckpointError(f"{path}: not a whole checkpoint ({_reason(error)}); use another one") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a checkpoint of format {FORMAT}, which this version writes and reads")
    return state


def check_same(state: dict[str, Any], path: Path, model: ModelConfig, classes: Sequence[str]) -> None:
    """Raises a CheckpointError unless the weights are for this model and these classes."""
    if state["name"] != model.name:
        raise CheckpointError(f"{path}: of {state['name']}, but model.name is {model.name}; set model.name={state['name']}")
    if state["classes"] != classes:
        raise CheckpointError(f"{path} and the images: {difference(state['classes'], classes)}")


def _flush_folder(folder: Path) -> None:
    """Makes the new name survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
