"""The options of PyTorch's DataLoader."""

from dataclasses import dataclass, replace
from typing import Self

import torch

from dali_pipes.backends.config import MAX_COUNT, Concurrency, LoaderConfig
from dali_pipes.checks import check_choice, check_int
from dali_pipes.data.image_files.jpeg import fastest_decoder
from dali_pipes.options import option


@dataclass(kw_only=True, slots=True)
class TorchConfig(LoaderConfig):
    """PyTorch's DataLoader on the CPU. Options keep PyTorch's names.

    Attributes:
        decoder: "pil" (Pillow), or the JPEG decoder of "torchvision" or "torchcodec" (the extra
            `torchcodec`), with Pillow for what is not JPEG; "auto" takes the fastest one that is
            installed.
        num_workers: worker processes; None: as many as the cores that this process may use; 0:
            decode in this process.
        pin_memory: copy batches to page-locked memory, if they go on to a GPU.
        prefetch_factor: batches in flight per worker.
        persistent_workers: keep the workers when an epoch is abandoned.
        multiprocessing_context: "fork", "spawn" or "forkserver"; None: Python's default.
        normalize_on: "worker" normalizes in the worker processes; "device" sends uint8 and
            normalizes where the batch arrives; "auto" is "device" if that is a GPU.
    """

    name = "torch"
    backend = "dali_pipes.backends.torch.backend:TorchBackend"

    decoder: str = option("pil", check_choice, ("pil", "torchvision", "torchcodec", "auto"))
    num_workers: int | None = option(None, check_int, 0, MAX_COUNT)
    pin_memory: bool = True
    prefetch_factor: int = option(2, check_int, 1, MAX_COUNT)
    persistent_workers: bool = True
    multiprocessing_context: str | None = option(
        None, check_choice, (None, "fork", "spawn", "forkserver")
    )
    normalize_on: str = option("auto", check_choice, ("auto", "worker", "device"))

    def on_packages(self) -> Self:
        return replace(self, decoder=fastest_decoder()) if self.decoder == "auto" else self

    def on_device(self, device: torch.device) -> Self:
        decided = self.on_packages()
        if self.normalize_on != "auto":
            return decided
        return replace(decided, normalize_on="device" if device.type == "cuda" else "worker")

    @property
    def sends_bytes(self) -> bool:
        """Whether workers send uint8 pixels, which are normalized where the batch arrives.

        With normalize_on=auto they do so if that is a GPU.
        """
        return self.normalize_on != "worker"

    @property
    def concurrency(self) -> Concurrency:
        workers = self.num_workers or 0
        return Concurrency(max(1, workers), max(1, workers), workers * self.prefetch_factor)
