"""One step of the optimizer, and the reading of its loss without waiting for the device.

The trainer calls `TrainStep` for each batch, and passes the loss to a `Readback`, which returns it
two steps later.
"""

from collections import deque
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dali_pipes.backends.base import Batch
from dali_pipes.training.average import WeightAverage
from dali_pipes.training.config import TrainConfig

STEPS_AHEAD = 2  # how far the host may run ahead of the GPU; docs/training.md relies on it


class TrainStep:
    """Runs forward and backward over `accumulate` parts of a batch, then updates the weights.

    It never waits for the device.

    Args:
        model: as set up by Fabric.
        module: the network itself, for the average.
        optimizer: as set up by Fabric.
    """

    def __init__(
        self,
        config: TrainConfig,
        fabric: Any,
        model: nn.Module,
        module: nn.Module,
        optimizer: Any,
        ema: WeightAverage | None,
    ):
        self._fabric, self._model, self._module, self._optimizer, self._ema = (
            fabric,
            model,
            module,
            optimizer,
            ema,
        )
        self._parts, self._smoothing = config.accumulate, config.label_smoothing

    def __call__(self, batch: Batch, lr: float) -> Tensor:
        """Returns the mean loss of the batch, on the device."""
        for group in self._optimizer.param_groups:
            # a checkpoint of an earlier version has no factors
            group["lr"] = lr * group.get("lr_scale", 1.0)

        # the gradients of the parts add up, so each loss counts for its share of the batch
        losses: list[Tensor] = []
        for images, labels in zip(
            batch.images.chunk(self._parts), batch.labels.chunk(self._parts), strict=True
        ):
            # the ranks exchange gradients with the last part only
            with self._fabric.no_backward_sync(self._model, enabled=len(losses) + 1 < self._parts):
                # the weights are fp32, and autocast rounds the images itself
                loss = (
                    cross_entropy(
                        self._model(images.float()), labels, label_smoothing=self._smoothing
                    )
                    / self._parts
                )
                self._fabric.backward(loss)
            losses.append(loss.detach())

        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._ema:
            self._ema.update(self._module)

        return sum(losses[1:], losses[0])


class Readback:
    """Reads one number per step, on a GPU two steps later; the host is never further ahead.

    So the host never waits for the step that it has just launched, and time inside the loader's
    next() is time that training has lost.
    """

    def __init__(self, device: torch.device):
        self._on_gpu = device.type == "cuda"
        # pinned, or the copy would wait for the device; one slot more than can be pending, so
        # that none is overwritten before it has been read
        self._slots = torch.empty(
            STEPS_AHEAD + 1, dtype=torch.float32, device="cpu", pin_memory=self._on_gpu
        )
        self._pending: deque[tuple[torch.cuda.Event, torch.Tensor]] = deque()
        self._count = 0

    def push(self, value: torch.Tensor) -> list[float]:
        """Takes this step's number, and returns those that have arrived.

        On the CPU that is the same number; on a GPU it is the one of two steps earlier, or none.
        """
        if not self._on_gpu:
            return [value.item()]

        slot = self._slots[self._count % len(self._slots)]
        slot.copy_(value.detach(), non_blocking=True)
        self._pending.append((torch.cuda.current_stream().record_event(), slot))  # type: ignore[no-untyped-call]
        self._count += 1
        return [self._next()] if len(self._pending) > STEPS_AHEAD else []

    def drain(self) -> list[float]:
        """Waits for the remaining numbers, and returns them."""
        return [self._next() for _ in range(len(self._pending))]

    def _next(self) -> float:
        event, slot = self._pending.popleft()
        event.synchronize()
        return slot.item()
