"""The tasks that the labels of a manifest can be: one class, several classes, numbers."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from dali_pipes.loader.batch import Batch
from dali_pipes.training.tasks.losses import Loss
from dali_pipes.training.tasks.task import BY_CLASS, CONFUSION, Measured, Task

# Metrics make the host wait for the device at every update, so outputs are kept for them until they
# are this many.
_KEPT_BYTES = 1 << 28
_CONFUSED = 100  # most classes of which a run counts how often each was found as another
_BINS = 15  # of confidence, as in the paper


class Supervised(Task):
    """A network from images to scores or numbers, which are compared with the labels.

    Args:
        network: takes (N, C, H, W) float32, and returns (N, K).
        loss: of its outputs and the labels.
        outputs: K.
    """

    def __init__(self, network: nn.Module, loss: Loss, outputs: int):
        super().__init__()
        self._network, self._loss, self._count = network, loss, outputs
        self.metrics: Any = None
        self._kept: list[tuple[Tensor, Tensor]] = []
        # in a tuple, so that a compiled network is no second part of this module
        self._called = (network,)

    @property
    def network(self) -> nn.Module:
        return self._network

    def compile(self) -> None:
        self._called = (torch.compile(self._network),)  # type: ignore[assignment]

    def step(self, batch: Batch) -> Tensor:
        # the weights are fp32, and autocast rounds the images itself
        loss: Tensor = self._loss(self._outputs(self._called[0], batch), batch.labels)
        return loss

    def begin_evaluation(self) -> None:
        if self.metrics is None:
            # imported here and below, since it takes seconds
            from torchmetrics import MetricCollection

            device = next(self._network.parameters()).device
            self.metrics = MetricCollection(self._list_metrics(self._count)).to(device)

    def evaluate(self, batch: Batch) -> Mapping[str, Measured]:
        outputs = self._outputs(self._network, batch).float()
        self._kept.append((outputs, batch.labels))
        if sum(each.nbytes for each, _ in self._kept) > _KEPT_BYTES:
            self.end_evaluation()
        return {**self._measure(outputs, batch.labels), "metrics": self.metrics}

    def end_evaluation(self) -> None:
        for outputs, labels in self._kept:
            self.metrics.update(*self._to_metrics(outputs, labels))
        self._kept.clear()

    def _outputs(self, network: nn.Module, batch: Batch) -> Tensor:
        outputs: Tensor = network(batch.images.float())
        return outputs

    @abstractmethod
    def _list_metrics(self, outputs: int) -> dict[str, Any]:
        """Returns metrics of torchmetrics by name."""

    @abstractmethod
    def _measure(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Returns numbers of each image, (N,), without waiting for the device."""

    @abstractmethod
    def _to_metrics(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the metrics take of outputs and labels."""


class Classification(Supervised):
    """One class for each image.

    It measures the cross-entropy; whether the class is the most likely one, and among the five most
    likely, or among all if there are fewer; F1, the mean of the classes and of each; and the
    expected calibration error (Guo et al., On Calibration of Modern Neural Networks, ICML 2017).
    """

    name = "classification"
    monitored = "top1"
    directions: ClassVar = {
        **Task.directions,
        "top1": "max",
        "top5": "max",
        "f1": "max",
        "calibration_error": "min",
    }

    def _list_metrics(self, outputs: int) -> dict[str, Any]:
        from torchmetrics.classification import (
            MulticlassCalibrationError,
            MulticlassConfusionMatrix,
            MulticlassF1Score,
        )

        few = outputs <= _CONFUSED
        confusion = MulticlassConfusionMatrix(outputs, validate_args=False) if few else None
        return ({CONFUSION: confusion} if confusion else {}) | {
            "f1": MulticlassF1Score(outputs, average="macro", validate_args=False),
            f"f1{BY_CLASS}": MulticlassF1Score(outputs, average=None, validate_args=False),
            "calibration_error": MulticlassCalibrationError(outputs, _BINS, validate_args=False),
        }

    def _measure(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        best = outputs.topk(min(5, outputs.shape[1]), dim=1).indices == labels[:, None]
        return {
            "loss": cross_entropy(outputs, labels, reduction="none"),
            "top1": best[:, 0],
            "top5": best.any(dim=1),
        }

    def _to_metrics(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return outputs.softmax(1), labels


class MultiLabel(Supervised):
    """Any number of classes for each image.

    It measures the binary cross-entropy; the average precision, of each class, and the mean of
    those that an image has; F1 where the probability is above 0.5, the mean of the classes, of
    all decisions together, and of each class.
    """

    name = "multilabel"
    monitored = "map"
    directions: ClassVar = {**Task.directions, "map": "max", "f1": "max", "f1_micro": "max"}

    def _list_metrics(self, outputs: int) -> dict[str, Any]:
        from torchmetrics.classification import MultilabelAveragePrecision, MultilabelF1Score
        from torchmetrics.utilities import dim_zero_cat

        class OfPresent(MultilabelAveragePrecision):
            """NaN of a class that no image has; torchmetrics takes 0 for it."""

            def compute(self) -> Tensor:  # type: ignore[override]
                each = super().compute()
                return each.where(dim_zero_cat(self.target).any(0), math.nan)

        class MeanOfPresent(OfPresent):
            def compute(self) -> Tensor:  # type: ignore[override]
                return super().compute().nanmean()

        return {
            "map": MeanOfPresent(outputs, average=None, validate_args=False),
            f"ap{BY_CLASS}": OfPresent(outputs, average=None, validate_args=False),
            "f1": MultilabelF1Score(outputs, average="macro", validate_args=False),
            "f1_micro": MultilabelF1Score(outputs, average="micro", validate_args=False),
            f"f1{BY_CLASS}": MultilabelF1Score(outputs, average=None, validate_args=False),
        }

    def _measure(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        loss = binary_cross_entropy_with_logits(outputs, labels, reduction="none")
        return {"loss": loss.mean(1)}

    def _to_metrics(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return outputs.sigmoid(), labels.long()


class Regression(Supervised):
    """One or several numbers for each image.

    It measures the squared error, the absolute error, the root of the mean squared error, and R²,
    the mean of the numbers.
    """

    name = "regression"
    monitored = "mae"
    directions: ClassVar = {**Task.directions, "mae": "min", "rmse": "min", "r2": "max"}

    def _outputs(self, network: nn.Module, batch: Batch) -> Tensor:
        outputs = super()._outputs(network, batch)
        return outputs[:, 0] if batch.labels.ndim == 1 else outputs

    def _list_metrics(self, outputs: int) -> dict[str, Any]:
        from torchmetrics import MeanSquaredError, R2Score

        # R2Score subtracts sums of squares, of which float32 leaves nothing where numbers are
        # large and differ little, such as years
        each = {"rmse": MeanSquaredError(squared=False), "r2": R2Score()}
        return {name: metric.set_dtype(torch.float64) for name, metric in each.items()}

    def _measure(self, outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        error = (outputs - labels).reshape(len(labels), -1)
        return {"loss": error.square().mean(1), "mae": error.abs().mean(1)}

    def _to_metrics(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return outputs.double(), labels.double()


SUPERVISED: Mapping[str, type[Supervised]] = {
    kind.name: kind for kind in (Classification, MultiLabel, Regression)
}
