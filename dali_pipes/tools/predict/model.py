"""Loads the model of a prediction, and selects which of its outputs are kept."""

import hashlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dali_pipes.errors import ConfigError
from dali_pipes.system.functions import import_function
from dali_pipes.tools.predict.config import PredictConfig
from dali_pipes.training import checkpoint
from dali_pipes.training.checkpoint import CheckpointError
from dali_pipes.training.network.average import averaged_weights
from dali_pipes.training.network.build import (
    build_network,
    check_compiler,
    check_size,
    refuse_training_options,
    title_of,
)
from dali_pipes.training.network.names import is_of_library
from dali_pipes.training.network.weights import describe_pixels, read_pixels

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Model(NamedTuple):
    """A loaded model.

    Attributes:
        outputs: takes images (N, C, H, W); returns the output's columns by name, each (N, K), on
            the images' device.
        name: the name of the network, or "module:function".
        files: SHA-256 of the checkpoint and of the file that the function is in.
        classes: the names of the classes, if the checkpoint has them.
        note: what is wrong with the transform for these weights, a sentence; None: nothing is
            known to be.
    """

    outputs: Callable[[Tensor], dict[str, Tensor]]
    name: str
    files: dict[str, str]
    classes: list[str] | None
    note: str | None = None


def load_model(config: PredictConfig, device: torch.device) -> Model:
    """Loads the model with its weights, on the device, in evaluation mode.

    Raises:
        ConfigError, CheckpointError: there is no such model or file, or they do not belong
            together.
    """
    refuse_training_options(config.model, but=["function", "options"])
    path = Path(str(config.checkpoint))
    saved: Any = checkpoint.read(path) if config.checkpoint else {}
    ours, files = checkpoint.is_ours(saved, path), {"checkpoint": config.checkpoint}

    if config.function:
        model, files["function"] = _call_function(config.function)
    else:
        model = _network(config, saved, ours)

    if config.checkpoint:
        weights = (
            saved
            if not ours
            else averaged_weights(saved["ema"])
            if saved["ema"]
            else saved["model"]
        )

        try:
            model.load_state_dict(weights)
        except Exception as error:
            # any error: the object may be no nn.Module, and the weights may be no state dict
            raise CheckpointError(
                f"{config.checkpoint}: not the weights of this model "
                f"({' '.join(str(error).split())[:300]})"
            ) from None

    # any other function of images takes care of its device itself
    if isinstance(model, nn.Module):
        model = model.to(device).eval()

    name = str(config.function or title_of(config.model) or saved["name"])
    hashes = {
        what: hashlib.sha256(Path(file).read_bytes()).hexdigest()
        for what, file in files.items()
        if file
    }

    return Model(
        _output_function(config, model, name),
        name,
        hashes,
        saved["classes"] if ours else None,
        describe_pixels(read_pixels(saved, path), config.transform) if ours else None,
    )


def _call_function(function: str) -> tuple[Any, str | None]:
    """Returns what the function returns, and the file that the function is in."""
    make = import_function(function)
    if callable(model := make()):
        return model, inspect.getsourcefile(make)
    raise ConfigError(
        f"function={function} returns {type(model).__name__}; it must return the model, a "
        "function of images"
    )


def _network(config: PredictConfig, saved: Any, ours: bool) -> nn.Module:
    """Builds the network that the weights belong to.

    A checkpoint of our training has the network's name and classes; the name is taken if it is that
    of a library's network. A function, a folder and options are taken from the command line only.
    For a state dict, the number of outputs is the length of its last tensor.
    """
    path, model = Path(str(config.checkpoint)), config.model
    if ours:
        _check_saved(config, saved, path)
        if not title_of(model) and is_of_library(saved["name"]):
            model = replace(model, name=saved["name"])
        checkpoint.check_same(saved, path, model, saved["classes"], config.transform.channels)
        outputs = saved.get("outputs", len(saved["classes"]))
    else:
        tensors = (
            [value for value in saved.values() if isinstance(value, Tensor) and value.ndim]
            if isinstance(saved, dict)
            else []
        )
        if not tensors:
            raise CheckpointError(
                f"{path}: neither a checkpoint of training nor a state dict; save "
                "model.state_dict()"
            )
        outputs = len(tensors[-1])

    network = build_network(model, outputs, config.transform.channels)
    # torchvision's transformers take images of one size only
    check_size(str(model.name), config.transform.size_at(0), model.options)
    return network


def _check_saved(config: PredictConfig, saved: Any, path: Path) -> None:
    """Refuses what a checkpoint of our training cannot give."""
    task = saved.get("task", checkpoint.CLASSIFICATION)
    if task == checkpoint.OWN:
        raise CheckpointError(
            f"{path}: of function={saved['name']} of dali-pipes train, which made a task; name a "
            "function that returns the network alone, and save its weights as a state dict: "
            "function=my_models:make checkpoint=FILE"
        )
    if task != checkpoint.CLASSIFICATION and config.output == "topk":
        raise ConfigError(
            f"output=topk keeps the most likely of several classes, and {path} is of the task "
            f"{task}; use output=logits"
        )


def _output_function(
    config: PredictConfig, model: Callable[[Tensor], Any], name: str
) -> Callable[[Tensor], dict[str, Tensor]]:
    """Makes the function `Model.outputs`.

    It raises a ConfigError if the model does not return a tensor (N, K).
    """
    forward = _embedding_function(model, name) if config.output == "embeddings" else model
    if config.model.compile:
        check_compiler()
        forward = torch.compile(forward)

    dtype = AUTOCAST.get(config.precision)

    @torch.inference_mode()
    def run(images: Tensor) -> dict[str, Tensor]:
        with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
            # the model gets float32, or uint8 pixels as they are (docs/predict.md)
            outputs = forward(images.float() if images.is_floating_point() else images)

        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        if not isinstance(outputs, Tensor) or outputs.ndim != 2 or len(outputs) != len(images):
            raise ConfigError(
                f"output={config.output} keeps K numbers per image, a tensor "
                f"({len(images)}, K) of {len(images)} images, and "
                f"{name} gives {shape}; function=module:function can return a model that "
                "gives such a tensor"
            )

        if config.output == "topk":
            if outputs.shape[1] < config.k:
                raise ConfigError(
                    f"k={config.k}, but {name} has {outputs.shape[1]} outputs; set k to at most "
                    "that"
                )
            scores, classes = outputs.float().softmax(1).topk(config.k)
            return {"classes": classes.int(), "scores": scores}

        return {config.output.replace("embeddings", "embedding"): outputs.float()}

    return run


def _embedding_function(model: Callable[[Tensor], Any], name: str) -> Callable[[Tensor], Tensor]:
    """Makes a function that returns the input of the nn.Linear that the model calls last.

    It raises a ConfigError if the model calls none.
    """
    inputs: list[Tensor] = []
    # which of them is the last one is known only when the model runs
    for layer in model.modules() if isinstance(model, nn.Module) else []:
        if isinstance(layer, nn.Linear):
            layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))

    def forward(images: Tensor) -> Tensor:
        inputs.clear()
        model(images)
        if not inputs:
            instead = "use output=logits with a function that returns embeddings"
            raise ConfigError(
                f"output=embeddings keeps what goes into the last nn.Linear, and {name} has "
                f"none; {instead}"
            )
        return inputs[-1]

    return forward
