"""The network at the start of a run: built, with the weights that it starts from, and without those
parts that are not trained.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from dali_pipes.errors import ConfigError
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.networks import build_network, find_head, freeze
from dali_pipes.training.weights import describe_pixels, find_weights, fit_weights


class Start(NamedTuple):
    """
    Attributes:
        network: on the CPU.
        said: what the log says of it, a sentence each.
    """

    network: nn.Module
    said: list[str]


def start_network(config: TrainConfig, classes: Sequence[str], resumes: bool) -> Start:
    """Builds the network of a run, the same on every rank.

    Args:
        resumes: whether a checkpoint gives the weights, so that no others are read.

    Raises:
        ConfigError: there is no such network, or nothing of it would be trained.
        CheckpointError: the weights that it is to start from cannot be read, or are not its own.
    """
    model, form = config.model, config.transform
    torch.manual_seed(config.seed)
    network, said = build_network(model, len(classes), form.channels), []

    head = find_head(network, len(classes))
    if not head and (model.weights or model.freeze):
        raise ConfigError(
            f"no layer of {model.function or model.name} has {len(classes)} outputs, one for each "
            "class, so its head is not known, which model.weights and model.freeze need; let the "
            "function take num_classes"
        )
    if model.weights and not resumes:
        weights = find_weights(model.weights, str(model.name))
        said += fit_weights(network, weights, head, classes).sentences(weights)
        if wrong := describe_pixels(weights, form.mean, form.std):
            said.append(f"Note: {wrong}")

    trained = freeze(network, model.freeze, head)
    if model.freeze:
        said.append(f"{trained:.1%} of the weights are trained")
    return Start(network, said)
