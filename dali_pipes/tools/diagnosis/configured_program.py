"""What a configuration of dali-pipes train would do, as a program."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from dali_pipes.backends.base import Batch
from dali_pipes.backends.common.pixels import DTYPE_BYTES
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.registry import entry_of
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.data.scanning.decoders import pillow
from dali_pipes.errors import ConfigError
from dali_pipes.loader.loader import build_loader
from dali_pipes.measure.trial import endless
from dali_pipes.tools.diagnosis.fixes import propose
from dali_pipes.tools.diagnosis.program import Feed, Fix
from dali_pipes.tools.diagnosis.window import Step
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.launch import launch
from dali_pipes.training.memory import check_memory
from dali_pipes.training.recipe import build_ema, build_mixing, build_network, build_optimizer
from dali_pipes.training.step import Readback, TrainStep


class ConfiguredProgram:
    """The loader and the step of training, of one process.

    Args:
        manifest: the images; repeated, so that a window does not end with them.
        files: the file of each of these images, counted once; those in one shard have the same.
        data_bytes: of the whole data set, which these images may be a part of.
    """

    def __init__(self, config: TrainConfig, manifest: Manifest, files: Sequence[Path], data_bytes: int = 0):
        self.config, self.manifest, self.paths, self.data_bytes = config, manifest, files, data_bytes
        self.decodes_on_gpu = torch.cuda.is_available() and config.loader.decodes_on == "gpu"
        self.is_fetched = manifest.is_fetched
        self.workers, self.burst, self.in_flight = config.loader.on_cores().concurrency
        self._fabric = launch(config.precision)

    @contextmanager
    def feed(self) -> Iterator[Feed]:
        config = self.config
        check_memory(config, self.manifest)
        with build_loader(
            self.manifest,
            config.loader,
            transform=config.transform,
            batch_size=config.batch_size * config.accumulate,
            seed=config.seed,
            sampling=config.sampling,
            last_batch="pad",
            on_bad_sample=config.on_bad_sample,
            max_bad_fraction=config.max_bad_fraction,
            device=self._fabric.device,
            batch_transform=build_mixing(config.mixing, len(self.manifest.classes)),
        ) as loader:
            yield Feed(endless(loader), lambda: loader.batches_left == len(loader), slow=self._slow)

    def step(self) -> Step:
        config, fabric = self.config, self._fabric
        torch.manual_seed(config.seed)
        module = build_network(config.model, len(self.manifest.classes)).to(fabric.device)
        compiled: Any = torch.compile(module) if config.model.compile else module
        model, optimizer = fabric.setup(compiled, build_optimizer(config.optimizer, module))
        train, losses = TrainStep(config, fabric, model, module, optimizer, build_ema(config, module)), Readback(fabric.device)
        return lambda batch: losses.push(train(batch, 0.0))  # at a rate of 0 nothing is learned, and nothing can diverge

    def transfer_size(self) -> tuple[int, bool]:
        loader, transform = self.config.loader, self.config.transform
        if self.decodes_on_gpu:
            return 0, True
        pixel_bytes = 1 if getattr(loader, "sends_bytes", False) else DTYPE_BYTES[transform.dtype]
        images = self.config.batch_size * self.config.accumulate
        return images * 3 * prod(transform.shape) * pixel_bytes, getattr(loader, "pin_memory", True)

    def count(self, batch: Batch) -> int:
        return len(batch)

    def concat(self, batches: Sequence[Batch]) -> Batch:
        images, labels, ids = (torch.cat([getattr(batch, part) for batch in batches]) for part in ("images", "labels", "ids"))
        return Batch(images, labels, ids)

    def fixes(self, verdict: str) -> list[Fix]:
        return propose(self, verdict)

    def changed(self, **options: Any) -> "ConfiguredProgram":
        return ConfiguredProgram(replace(self.config, **options), self.manifest, self.paths, self.data_bytes)

    def _slow(self, batch: Batch) -> list[tuple[str, float]]:
        """Reads and decodes each image of the batch alone, with Pillow."""
        reader, timed = Reader(), []
        for extent in {self.manifest.extent(sample_id) for sample_id in batch.ids.tolist()}:
            before = time.monotonic()
            with suppress(Exception):
                pillow(reader.read(extent).tobytes())
            timed.append((str(extent), time.monotonic() - before))
        return timed


def check_loader(loader: LoaderConfig) -> None:
    """
    Raises:
        ConfigError: nobody trains with this loader.
    """
    if not (entry_of(loader).trains and entry_of(loader).makes_images):
        raise ConfigError("this loader is for benchmarks only, not for training; use loader=dali, dali_cpu or torch")
