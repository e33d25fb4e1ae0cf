"""One step of the optimizer, and the reading of its loss without waiting for the device.

The trainer calls `TrainStep` for each batch, and passes the loss to a `Readback`, which returns it
two steps later.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dali_pipes.loader.batch import Batch, Ragged
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.network.average import WeightAverage
from dali_pipes.training.tasks.task import Task

STEPS_AHEAD = 2  # how far the host may run ahead of the GPU; docs/training.md relies on it


class Forward(nn.Module):
    """Calls a task's step inside the forward pass that Fabric and DDP wrap.

    The batch comes as a function: they would copy and convert what they find in a batch.
    """

    def __init__(self, task: Task):
        super().__init__()
        self.task = task

    def forward(self, take: Callable[[], Batch]) -> Tensor:
        return self.task.step(take())


class TrainStep:
    """Runs forward and backward over `accumulate` parts of a batch, then updates the weights.

    It never waits for the device, unless the user's own task does.

    Args:
        model: a `Forward` of the task, as set up by Fabric.
        task: what the average is of.
        optimizer: as set up by Fabric.
    """

    def __init__(
        self,
        config: TrainConfig,
        fabric: Any,
        model: nn.Module,
        task: Task,
        optimizer: Any,
        ema: WeightAverage | None,
    ):
        self._fabric, self._model, self._task, self._optimizer, self._ema = (
            fabric,
            model,
            task,
            optimizer,
            ema,
        )
        self._parts, self._clip_norm = config.accumulate, config.optimizer.clip_grad_norm
        self._scaler = getattr(fabric.strategy.precision, "scaler", None)

    def __call__(self, batch: Batch, lr: float) -> Tensor:
        """Returns the mean loss of the batch, on the device."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]

        # the gradients of the parts add up, so each loss counts for its share of the batch
        losses: list[Tensor] = []
        for part in split(batch, self._parts):
            # the ranks exchange gradients with the last part only
            with self._fabric.no_backward_sync(self._model, enabled=len(losses) + 1 < self._parts):
                loss = self._model(partial(_same, part)) / self._parts
                self._fabric.backward(loss)
            losses.append(loss.detach())

        if self._clip_norm is not None:
            self._clip(self._clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._ema:
            self._ema.update(self._task)

        return sum(losses[1:], losses[0])

    def _clip(self, max_norm: float) -> None:
        # Fabric's `clip_gradients` refuses fused optimizers in fp16, and waits for the device
        if self._scaler:
            # a step whose gradients overflowed is skipped after this too
            self._scaler.unscale_(self._optimizer.optimizer)
        groups = self._optimizer.param_groups
        nn.utils.clip_grad_norm_([each for group in groups for each in group["params"]], max_norm)


def _same(batch: Batch) -> Batch:
    return batch


def split(batch: Batch, parts: int) -> list[Batch]:
    """Cuts a batch into parts of equally many images."""
    if parts == 1:
        return [batch]
    images = len(batch) // parts
    return [
        Batch(
            **{
                each.name: _cut(getattr(batch, each.name), part * images, (part + 1) * images)
                for each in fields(Batch)
            }
        )
        for part in range(parts)
    ]


def _cut(value: Any, start: int, stop: int) -> Any:
    """What belongs to some images of a batch, whose first dimension or items are its images."""
    if isinstance(value, dict):
        return {name: _cut(each, start, stop) for name, each in value.items()}
    if isinstance(value, Ragged):
        first, last = sum(value.lengths[:start]), sum(value.lengths[:stop])
        return Ragged(value.values[first:last], value.lengths[start:stop])
    return value[start:stop]


class Readback:
    """Reads one number per step, on a GPU two steps later; the host is never further ahead.

    So the host never waits for the step that it has just launched.
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
