"""What is done with the batches that are measured: each is read, or trained on.

Both wait until a batch is ready, as a training program does; `finish` waits for their own work.
"""

from abc import ABC, abstractmethod

import torch
from torch.nn.functional import cross_entropy

from dali_pipes.loader.batch import Batch
from dali_pipes.system.provenance import gpu_is_simulated
from dali_pipes.training.config import ModelConfig
from dali_pipes.training.network.build import build_network
from dali_pipes.training.step import Readback


class Consumer(ABC):
    """Uses batches; when `finish` returns, all work on them is done."""

    def __init__(self) -> None:
        self._result = torch.zeros(())

    @abstractmethod
    def __call__(self, batch: Batch) -> None: ...

    def finish(self) -> None:
        """Waits until the device has done all work on the batches.

        Raises:
            ValueError: the result is not finite. (On a simulated GPU it may be anything.)
        """
        is_finite = torch.isfinite(self._result).item()  # waits for all work on the current stream
        if not is_finite and not gpu_is_simulated():
            raise ValueError(
                f"the result computed from the batches is {self._result.item()}; this run is "
                "not valid"
            )


class Touch(Consumer):
    """Reads one column of every image on its device, which has to wait for unfinished batches."""

    def __call__(self, batch: Batch) -> None:
        # the sum goes on, so that one NaN in any batch is seen at the end
        self._result = batch.images[..., 0].sum(dtype=torch.float32) + self._result.to(
            batch.images.device
        )


class TrainConsumer(Consumer):
    """A training step: forward, backward, SGD; channels_last, in bf16 on a GPU, in fp32 on a CPU.

    The labels are the ids modulo 1000.
    """

    def __init__(self, batch: Batch, model: str):
        super().__init__()
        # the same weights in all arms
        torch.manual_seed(0)
        network = build_network(ModelConfig(name=model), 1000, batch.images.shape[1])
        self._model = network.to(batch.images.device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)
        self._readback = Readback(batch.images.device)

    def __call__(self, batch: Batch) -> None:
        # arms deliver uint8 or normalized floats, and the step is the same for all
        images = batch.images.float() / 255 if batch.images.dtype == torch.uint8 else batch.images
        images = images.to(torch.float32, memory_format=torch.channels_last)

        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            loss = cross_entropy(self._model(images).float(), batch.ids % 1000)

        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

        self._result = loss.detach()
        # keeps the host at most two steps ahead of the GPU, so that waits for batches show
        self._readback.push(self._result)
