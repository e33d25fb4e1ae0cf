"""Losses by name, each a function of a network's scores and the labels of a batch."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import sigmoid_focal_loss

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.training.config import BALANCED, FOCAL_GAMMA, TaskConfig

# by task, the first is its default
LOSSES: Mapping[str, tuple[str, ...]] = {
    "classification": ("cross_entropy", "focal", "bce"),
    "multilabel": ("bce", "focal"),
    "regression": ("mse", "l1", "smooth_l1", "huber"),
}


class Loss(nn.Module):
    """The mean loss of a batch.

    Args:
        function: of scores and labels.
        weights: tensors that it takes as arguments of these names. They move with the module, and
            no checkpoint has them.
    """

    def __init__(self, function: Callable[..., Tensor], weights: Mapping[str, Tensor]):
        super().__init__()
        self._function, self._names = function, tuple(weights)
        for name, value in weights.items():
            self.register_buffer(f"_{name}", value, persistent=False)

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        weights = {name: getattr(self, f"_{name}") for name in self._names}
        return self._function(scores, labels, **weights)


def build_loss(config: TaskConfig, task: str, smoothing: float, manifest: Manifest) -> Loss:
    """Builds the loss of a task.

    Args:
        smoothing: `label_smoothing`.

    Raises:
        ConfigError: the task has no such loss, or the loss has no such option.
    """
    name = config.loss or LOSSES[task][0]
    if name not in LOSSES[task]:
        raise ConfigError(
            f"task.loss={name} is not for {task}, whose losses are {', '.join(LOSSES[task])}"
        )
    _refuse_options(config, task, name, smoothing)

    weights = {}
    if config.class_weights is not None:
        weights["weight"] = _weights("class_weights", config.class_weights, task, manifest)
    if config.pos_weight is not None:
        weights["pos_weight"] = _weights("pos_weight", config.pos_weight, task, manifest)

    functions: dict[tuple[str, str], Callable[..., Tensor]] = {
        ("classification", "cross_entropy"): _with(_cross_entropy, label_smoothing=smoothing),
        ("classification", "focal"): _with(_softmax_focal, gamma=config.focal_gamma),
        ("classification", "bce"): _with(
            _bce_of_classes, smoothing=smoothing, threshold=config.target_threshold
        ),
        ("multilabel", "bce"): functional.binary_cross_entropy_with_logits,
        ("multilabel", "focal"): _with(_sigmoid_focal, gamma=config.focal_gamma),
        ("regression", "mse"): functional.mse_loss,
        ("regression", "l1"): functional.l1_loss,
        ("regression", "smooth_l1"): functional.smooth_l1_loss,
        ("regression", "huber"): functional.huber_loss,
    }
    return Loss(functions[task, name], weights)


def _refuse_options(config: TaskConfig, task: str, loss: str, smoothing: float) -> None:
    takes = {
        "label_smoothing": task == "classification" and loss != "focal",
        "task.class_weights": task != "regression",
        "task.pos_weight": loss == "bce",
        "task.focal_gamma": loss == "focal",
        "task.target_threshold": (task, loss) == ("classification", "bce"),
    }
    given = {
        "label_smoothing": smoothing > 0,
        "task.class_weights": config.class_weights is not None,
        "task.pos_weight": config.pos_weight is not None,
        "task.focal_gamma": config.focal_gamma != FOCAL_GAMMA,
        "task.target_threshold": config.target_threshold is not None,
    }
    for name, is_given in given.items():
        if is_given and not takes[name]:
            raise ConfigError(f"{name} is not for the loss {loss} of {task}; leave it out")


def _with(function: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    return lambda scores, labels, **weights: function(scores, labels, **weights, **options)


def _weights(name: str, given: Any, task: str, manifest: Manifest) -> Tensor:
    """Returns (C,) float32."""
    classes = len(manifest.classes)
    if given == BALANCED:
        counts = np.maximum(count_labels(manifest), 1)
        images = len(manifest)
        values = (images - counts) / counts if name == "pos_weight" else images / classes / counts
        return torch.tensor(values, dtype=torch.float32, device="cpu")

    if len(given) != classes:
        raise ConfigError(
            f"task.{name} has {len(given)} numbers, and there are {classes} classes; give one for "
            "each, in the order of the classes"
        )
    return torch.tensor(given, dtype=torch.float32, device="cpu")


def count_labels(manifest: Manifest) -> NDArray[np.int64]:
    """Returns how many images each class has, (C,); an image of several classes counts for each."""
    labels = manifest.labels
    return np.bincount(labels[labels >= 0], minlength=len(manifest.classes))


def _one_hot(labels: Tensor, like: Tensor) -> Tensor:
    """Class numbers (N,) as shares (N, C); mixed labels are shares already."""
    if labels.ndim == 2:
        return labels
    return functional.one_hot(labels, like.shape[1]).to(like.dtype)


def _cross_entropy(
    scores: Tensor, labels: Tensor, *, label_smoothing: float, weight: Tensor | None = None
) -> Tensor:
    """PyTorch's, but 0 where the classes of all images of the batch have the weight 0: its mean is
    0/0 there.
    """
    # the mean of mixed labels is over images
    if weight is None or labels.ndim == 2:
        return functional.cross_entropy(scores, labels, weight, label_smoothing=label_smoothing)
    total = weight[labels].sum()
    loss = functional.cross_entropy(
        scores, labels, weight, reduction="sum", label_smoothing=label_smoothing
    )
    return loss * (total > 0) / total.where(total > 0, 1)


def _softmax_focal(
    scores: Tensor, labels: Tensor, *, gamma: float, weight: Tensor | None = None
) -> Tensor:
    """Lin et al., Focal Loss for Dense Object Detection (ICCV 2017), for one class of several: the
    cross-entropy times (1 - p)^gamma, with the weight of the class.
    """
    logs = scores.log_softmax(1)
    each = _one_hot(labels, scores) * (1 - logs.exp()) ** gamma * -logs
    return (each if weight is None else each * weight).sum(1).mean()


def _sigmoid_focal(
    scores: Tensor, labels: Tensor, *, gamma: float, weight: Tensor | None = None
) -> Tensor:
    each: Tensor = sigmoid_focal_loss(scores, labels, alpha=-1, gamma=gamma)
    return (each if weight is None else each * weight).mean()


def _bce_of_classes(
    scores: Tensor,
    labels: Tensor,
    *,
    smoothing: float,
    threshold: float | None,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
) -> Tensor:
    """One binary decision for each class, as timm's BinaryCrossEntropy (Wightman et al., ResNet
    strikes back, 2021, section 3): smoothed shares, which a threshold makes 0 or 1.
    """
    shares = _one_hot(labels, scores) * (1 - smoothing) + smoothing / scores.shape[1]
    if threshold is not None:
        shares = (shares > threshold).to(scores.dtype)
    return functional.binary_cross_entropy_with_logits(
        scores, shares, weight=weight, pos_weight=pos_weight
    )
