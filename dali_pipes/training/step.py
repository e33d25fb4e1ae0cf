"""One step of the optimizer."""

from typing import Any

from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel

from dali_pipes.backends.base import Batch
from dali_pipes.training.config import TrainConfig


class TrainStep:
    """Forward and backward over `accumulate` parts of a batch, then the update. It never waits for the device.

    Args:
        model: as set up by Fabric.
        module: the network itself, for the average.
        optimizer: as set up by Fabric.
    """

    def __init__(
        self, config: TrainConfig, fabric: Any, model: nn.Module, module: nn.Module, optimizer: Any, ema: AveragedModel | None
    ):
        self._fabric, self._model, self._module, self._optimizer, self._ema = fabric, model, module, optimizer, ema
        self._parts, self._smoothing = config.accumulate, config.label_smoothing

    def __call__(self, batch: Batch, lr: float) -> Tensor:
        """Returns the mean loss of the batch, on the device."""
        set_lr(self._optimizer, lr)
        losses: list[Tensor] = []
        for images, labels in zip(batch.images.chunk(self._parts), batch.labels.chunk(self._parts), strict=True):
            with self._fabric.no_backward_sync(self._model, enabled=len(losses) + 1 < self._parts):
                loss = cross_entropy(self._model(images.float()), labels, label_smoothing=self._smoothing) / self._parts
                self._fabric.backward(loss)
            losses.append(loss.detach())
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._ema:
            self._ema.update_parameters(self._module)
        return sum(losses[1:], losses[0])


def set_lr(optimizer: optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
