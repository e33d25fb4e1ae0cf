"""Consumers of batches during a measurement."""

from typing import Protocol

import torch
from torch.nn.functional import cross_entropy

from dali_pipes.backends.base import Batch, DecodedBatch
from dali_pipes.training.readback import Readback


class Consumer(Protocol):
    """Uses batches; all work on them is done when `finish` returns."""

    def __call__(self, batch: Batch) -> None: ...

    def finish(self) -> None:
        """Waits for the device.

        Raises:
            ValueError: what was computed is not finite.
        """
        ...


class Touch:
    """Reads one column of every image on its device, so that a batch that is not finished yet is waited for."""

    def __init__(self) -> None:
        self._total = torch.zeros(())

    def __call__(self, batch: Batch | DecodedBatch) -> None:
        self._total = batch.images[..., 0].sum(dtype=torch.float32) + self._total.to(batch.images.device)

    def finish(self) -> None:
        _check_finite(self._total)


class TrainStep:
    """A training step: forward, backward, SGD. bf16 and channels_last on a GPU, fp32 without one."""

    def __init__(self, batch: Batch, model: str):
        from dali_pipes.training.models import build_model  # and torchvision: seconds that only this takes

        device = batch.images.device
        self._on_gpu = device.type == "cuda"
        torch.manual_seed(0)
        self._model = build_model(model).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)
        self._readback = Readback(device)
        self._loss = torch.zeros((), device=device)

    def __call__(self, batch: Batch) -> None:
        images = batch.images.float() / 255 if batch.images.dtype == torch.uint8 else batch.images
        images = images.to(torch.float32, memory_format=torch.channels_last)
        with torch.autocast(batch.images.device.type, torch.bfloat16, enabled=self._on_gpu):
            self._loss = cross_entropy(self._model(images).float(), batch.ids % 1000)
        self._optimizer.zero_grad()
        self._loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._readback.push(self._loss)

    def finish(self) -> None:
        _check_finite(self._loss.detach())


def _check_finite(value: torch.Tensor) -> None:
    if not torch.isfinite(value).item():  # waits for all work on the current stream
        raise ValueError(f"the result computed from the batches is {value.item()}; this run is not valid")
