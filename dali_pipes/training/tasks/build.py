"""The task of a run: what the labels are, or the user's own."""

import numpy as np
from torch import nn

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.tasks.losses import build_loss
from dali_pipes.training.tasks.supervised import SUPERVISED, Supervised


def name_task(config: TrainConfig, manifest: Manifest, source: str | None = None) -> str:
    """Returns the task of these images: that of the options, or what their labels are.

    Args:
        source: what errors call the images; None: their folder.

    Raises:
        ConfigError: the labels are other ones, or there are none.
    """
    found, wanted, source = manifest.task, config.task.name, source or str(manifest.root)
    if wanted and wanted != found:
        raise ConfigError(
            f"task.name={wanted}, and {source}: {describe_labels(manifest)}; leave it out, "
            "or name other images"
        )
    if found == "multilabel" and not manifest.labels.size:
        raise ConfigError(
            f"{source}: {describe_labels(manifest)}, and a network learns them; give each "
            "image a class or numbers (docs/targets.md), or train a task of yours: "
            "function=my_train:make (docs/training.md)"
        )
    return found


def describe_labels(manifest: Manifest) -> str:
    """Says what the images have."""
    if there := [name for name in ("boxes", "mask") if manifest.has_target(name)]:
        return f"its images have {' and '.join(there).replace('mask', 'masks')}"
    if manifest.task == "multilabel":
        return (
            "its labels are several classes each"
            if manifest.labels.size
            else "its images have no labels"
        )
    return {
        "classification": "its labels are one class each",
        "regression": "its labels are numbers to predict",
    }[manifest.task]


def count_outputs(manifest: Manifest) -> int:
    """Returns how many numbers a network gives for each image: one for each class, or as many as
    there are to predict.
    """
    if manifest.task != "regression":
        return len(manifest.classes)
    labels = manifest.take_labels(np.arange(1))
    return labels.shape[1] if labels.ndim == 2 else 1


def build_supervised(config: TrainConfig, manifest: Manifest, network: nn.Module) -> Supervised:
    """Builds the task of these images around a network.

    Raises:
        ConfigError: the loss is not for it.
    """
    task = name_task(config, manifest)
    loss = build_loss(config.task, task, config.label_smoothing, manifest)
    return SUPERVISED[task](network, loss, count_outputs(manifest))
