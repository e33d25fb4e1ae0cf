"""The task at the start of a run: its network is built, has the weights that it starts from, and
parts of it are not trained.
"""

from typing import NamedTuple

import torch
from torch import nn

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.plan.transforms import views_of
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.data import spell_classes
from dali_pipes.training.network.build import build_network, find_head
from dali_pipes.training.network.freezing import freeze
from dali_pipes.training.network.hugging_face import stored_classes
from dali_pipes.training.network.weights import describe_pixels, find_weights, fit_weights
from dali_pipes.training.tasks.build import build_supervised, count_outputs
from dali_pipes.training.tasks.own import make_own
from dali_pipes.training.tasks.task import Task


class Start(NamedTuple):
    """
    Attributes:
        task: on the CPU.
        said: what the log says of it, a sentence each.
    """

    task: Task
    said: list[str]


def start_task(config: TrainConfig, manifest: Manifest, resumes: bool = False) -> Start:
    """Builds the task of a run, the same on every rank.

    Args:
        manifest: the training images.
        resumes: whether a checkpoint gives the weights, so that no others are read.

    Raises:
        ConfigError: there is no such network, function or loss, or nothing would be trained.
        CheckpointError: the weights that it is to start from cannot be read, or are not its own.
    """
    torch.manual_seed(config.seed)
    if config.function:
        task = make_own(config, manifest)
        return Start(task, _explain_views(config, task))
    network, said = _start_network(config, manifest, resumes)
    return Start(build_supervised(config, manifest, network), said)


def _explain_views(config: TrainConfig, task: Task) -> list[str]:
    """Returns what the log says of the views that validation does not have."""
    several = [len(views_of(each)) > 1 for each in (config.transform, config.eval_transform)]
    if several != [True, False] or config.eval_with != "eval_transform" or not task.evaluates:
        return []
    return [
        "Note: evaluate() gets the images of eval_transform, in batch.images, and no batch.views; "
        "eval_with=transform evaluates on views"
    ]


def _explain_classes(network: nn.Module, manifest: Manifest) -> list[str]:
    """Returns what the log says of the classes of a folder of Hugging Face.

    Raises:
        ConfigError: they are those of the images in another order, and the head is of that order.
    """
    names = stored_classes(network)
    if len(names) != len(manifest.classes) or names == manifest.classes:
        return []
    if sorted(names) == sorted(manifest.classes):
        raise ConfigError(
            "the folder of model.name has the classes of the images in another order; give both "
            f"the same: {spell_classes(names)}"
        )
    return [
        f"Note: the head is that of the folder, whose classes are named {names[0]} … {names[-1]}, "
        f"and those of the images {manifest.classes[0]} … {manifest.classes[-1]}"
    ]


def _start_network(
    config: TrainConfig, manifest: Manifest, resumes: bool
) -> tuple[nn.Module, list[str]]:
    model, form, outputs = config.model, config.transform, count_outputs(manifest)
    network, said = build_network(model, outputs, form.channels), list[str]()
    if not resumes:
        said += _explain_classes(network, manifest)

    head = find_head(network, outputs)
    if not head and (model.weights or model.freeze):
        raise ConfigError(
            f"no layer of {model.function or model.name} has {outputs} outputs, so its head is not "
            "known, which model.weights and model.freeze need; let the function take num_classes"
        )
    if model.weights and not resumes:
        weights = find_weights(model.weights, None if model.function else model.name)
        said += fit_weights(network, weights, head, manifest.classes).sentences(weights)
        if wrong := describe_pixels(weights, form):
            said.append(f"Note: {wrong}")

    trained = freeze(network, model.freeze, head)
    if model.freeze:
        said.append(f"{trained:.1%} of the weights are trained")
    return network, said
