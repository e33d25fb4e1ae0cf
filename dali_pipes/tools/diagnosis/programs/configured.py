"""A configuration of dali-pipes train as a program that diagnose can measure, and the options that
could be changed in it.

`ConfiguredProgram` builds loader and step as `dali-pipes train` does; `propose` lists the changed
configurations that are worth a try for a verdict.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from dali_pipes.backends.auto.choices import likely
from dali_pipes.backends.auto.config import AutoConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.pixels.tensors import DTYPE_BYTES
from dali_pipes.data.image_files.decoders import decode_size
from dali_pipes.data.manifest import Manifest
from dali_pipes.data.reader import Reader
from dali_pipes.loader.batch import Batch
from dali_pipes.loader.build import build_loader
from dali_pipes.loader.loader import Loader
from dali_pipes.measure.trial import repeat_epochs
from dali_pipes.system.cpus import available_cpus
from dali_pipes.tools.diagnosis.measuring.training import Step
from dali_pipes.tools.diagnosis.programs.base import Feed, Fix, TrainingProgram
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.launch import launch
from dali_pipes.training.network.memory import check_memory
from dali_pipes.training.optimizing.recipe import build_ema, build_mixing, build_optimizer
from dali_pipes.training.step import Forward, Readback, TrainStep
from dali_pipes.training.tasks.start import start_task
from dali_pipes.training.tasks.task import Task

OTHER_PIXELS = "pixels differ a little: docs/pixels.md"
# verdicts that less CPU time for each image would change
_LESS_CPU = (
    "prep-bound (too few workers)",
    "prep-bound (CPU saturated)",
    "cgroup-throttled",
    "decode-contention",
)
# by verdict: how many times as large a batch is tried
_LARGER = {"model-bound": 2, "sync-bound": 2, "decode-contention": 2, "launch-bound": 4}


class ConfiguredProgram(TrainingProgram):
    """The loader and the training step of one process.

    Args:
        manifest: the images; repeated, so that a span does not end with them.
        files: the file of each of these images, counted once; those in one shard have the same.
        data_bytes: of the whole data set, which these images may be a part of.
        task: what is trained, with the weights of the start; None: as `config` has it.
    """

    def __init__(
        self,
        config: TrainConfig,
        manifest: Manifest,
        files: Sequence[Path],
        data_bytes: int = 0,
        task: Task | None = None,
    ):
        self._fabric = launch(config.precision)
        if isinstance(config.loader, AutoConfig):
            # one that tries others while it is measured would be measured as none of them
            device, transform = self._fabric.device, config.transform
            config = replace(config, loader=likely(config.loader, device, transform, manifest))
        self.config, self.manifest, self.paths, self.data_bytes = (
            config,
            manifest,
            files,
            data_bytes,
        )
        self.decodes_on_gpu = torch.cuda.is_available() and config.loader.decodes_on == "gpu"
        self.is_fetched = manifest.is_fetched
        self.workers, self.burst, self.in_flight = config.loader.on_cores().concurrency
        self.works_beside = self.in_flight > 0
        self._task = task or start_task(config, manifest).task

    def check_memory(self, programs: int = 1) -> None:
        """Checks that the memory which this program needs is free.

        Args:
            programs: how many run at once on this machine.

        Raises:
            ConfigError: it is not.
        """
        check_memory(self.config, self.manifest, self._fabric.device, self._task.network, programs)

    @contextmanager
    def feed(self) -> Iterator[Feed]:
        config = self.config
        # a changed configuration may need more memory than the one that was checked at the start
        self.check_memory()

        with build_loader(
            self.manifest,
            config.loader,
            transform=config.transform,
            batch_size=config.batch_size * config.accumulate,
            seed=config.seed,
            sampling=config.sampling,
            # keeps all batches of one size
            last_batch="pad",
            on_bad_sample=config.on_bad_sample,
            max_bad_fraction=config.max_bad_fraction,
            device=self._fabric.device,
            batch_transform=build_mixing(config.mixing, len(self.manifest.classes)),
        ) as loader:
            yield loader_feed(loader, self._time_images)

    def step(self) -> Step:
        config, fabric = self.config, self._fabric
        # each program begins with the same weights and draws
        torch.manual_seed(config.seed)
        task = deepcopy(self._task).to(fabric.device)
        ema = build_ema(config, task)
        if config.model.compile:
            task.compile()
        model, optimizer = fabric.setup(
            Forward(task), build_optimizer(config.optimizer, task.network)
        )
        train, losses = (
            TrainStep(config, fabric, model, task, optimizer, ema),
            Readback(fabric.device),
        )

        # at a rate of 0 nothing is learned, and nothing can diverge
        return lambda batch: losses.push(train(batch, 0.0))

    def transfer_size(self) -> tuple[int, bool]:
        loader, transform = self.config.loader, self.config.transform

        # batches that are decoded on the GPU are there already
        if self.decodes_on_gpu:
            return 0, True

        pixel_bytes = 1 if getattr(loader, "sends_bytes", False) else DTYPE_BYTES[transform.dtype]
        images = self.config.batch_size * self.config.accumulate
        values = images * transform.channels * prod(transform.shape)
        return values * pixel_bytes, getattr(loader, "pin_memory", True)

    def concat(self, batches: Sequence[Batch]) -> Batch:
        images, labels, ids = (
            torch.cat([getattr(batch, part) for batch in batches])
            for part in ("images", "labels", "ids")
        )
        return Batch(images, labels, ids)

    def fixes(self, verdict: str) -> list[Fix]:
        return propose(self, verdict)

    def changed(self, **options: Any) -> "ConfiguredProgram":
        """Returns the same program with other options of TrainConfig, but for those of the task."""
        config = replace(self.config, **options)
        return ConfiguredProgram(config, self.manifest, self.paths, self.data_bytes, self._task)

    def _time_images(self, batch: Batch) -> list[tuple[str, float]]:
        """Returns the seconds that reading and decoding take for each image of the batch, alone,
        with Pillow.
        """
        reader, timed = Reader(), []
        for extent in {self.manifest.extent(sample_id) for sample_id in batch.ids.tolist()}:
            before = time.monotonic()
            # an image that cannot be read is timed as well
            with suppress(Exception):
                decode_size(reader.read(extent).tobytes())
            timed.append((str(extent), time.monotonic() - before))
        return timed


def loader_feed(
    loader: Loader, slow: Callable[[Any], list[tuple[str, float]]] = lambda batch: []
) -> Feed:
    """Returns the feed of a loader of dali_pipes that has been started."""
    return Feed(repeat_epochs(loader), lambda: loader.batches_left == len(loader), slow=slow)


def propose(program: ConfiguredProgram, verdict: str) -> list[Fix]:
    """Returns the fixes that can be tried, the likeliest first."""
    return [*_loader_fixes(program, verdict), *_model_fixes(program, verdict)]


def _loader_fixes(program: ConfiguredProgram, verdict: str) -> Iterator[Fix]:
    loader, cores, now = program.config.loader, available_cpus(), program.workers

    def options(why: str, changed: dict[str, Any], note: str = "") -> Fix:
        what = " ".join(f"loader.{name}={str(value).lower()}" for name, value in changed.items())
        return Fix(what, why, program.changed(loader=replace(loader, **changed)), note=note)

    def dali(what: str, why: str, device: str) -> Fix:
        changed = program.changed(loader=DaliConfig(device=device))
        return Fix(what, why, changed, note=f"replaces all loader. options; {OTHER_PIXELS}")

    match verdict:
        case "fetch-bound" if loader.cores_option:
            for times in (2, 4, 8):
                yield options(
                    "more files are waited for at the same time",
                    {loader.cores_option: times * max(1, now)},
                )
        # more workers than cores only help where files are waited for
        case "prep-bound (too few workers)" if loader.cores_option:
            for more in sorted({max(now + 1, cores // 2), cores} - set(range(now + 1))):
                yield options("cores are idle", {loader.cores_option: more})
        case "straggler":
            for option, more in (("prefetch_factor", 8), ("prefetch_queue_depth", 6)):
                if hasattr(loader, option):
                    yield options("more batches are ready", {option: more})
        case "transfer-bound":
            yield dali("loader=dali", "only JPEGs go to the GPU", "auto")
            if hasattr(loader, "pin_memory") and hasattr(loader, "normalize_on"):
                yield options("fewer bytes, faster", {"pin_memory": True, "normalize_on": "device"})

    if verdict in _LESS_CPU and loader.decodes_on == "gpu" and hasattr(loader, "hw_decoder_load"):
        for load in (0.3, 0.9):
            yield options("another share for the hardware JPEG decoder", {"hw_decoder_load": load})
    elif verdict in _LESS_CPU:
        if torch.cuda.is_available():
            yield dali("loader=dali", "decodes on the GPU", "gpu")
        if loader.name != "dali":
            yield dali("loader=dali_cpu", "less CPU time for each image", "cpu")
        if loader.name == "torch" and getattr(loader, "decoder", "") == "pil":
            yield options("a faster JPEG decoder", {"decoder": "torchvision"}, OTHER_PIXELS)


def _model_fixes(program: ConfiguredProgram, verdict: str) -> Iterator[Fix]:
    config = program.config

    def batch(size: int, why: str, note: str) -> Fix:
        return Fix(f"batch_size={size}", why, program.changed(batch_size=size), "model", note=note)

    if verdict in ("model-bound", "decode-contention") and config.precision == "fp32":
        changed = program.changed(precision="bf16")
        yield Fix(
            "precision=bf16",
            "the same network in half the bits",
            changed,
            "model",
            note="weights are rounded differently",
        )

    if times := _LARGER.get(verdict):
        yield batch(
            config.batch_size * times,
            "what a step costs is shared by more images",
            "another recipe: adapt lr",
        )

    if verdict == "memory-bound":
        yield batch(max(1, config.batch_size // 2), "takes half the memory", "adapt lr")
        if getattr(config.loader, "prefetch_factor", 1) > 1:
            fewer = program.changed(loader=replace(config.loader, prefetch_factor=1))
            yield Fix("loader.prefetch_factor=1", "fewer batches are ready", fewer)
