"""What could be changed in a configuration of scripts/train.py, for each verdict."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch

from dali_pipes.backends.config import DaliConfig
from dali_pipes.backends.registry import entry_of
from dali_pipes.system.cpus import available_cpus
from dali_pipes.tools.diagnosis.program import Fix, TrainingProgram
from dali_pipes.training.config import TrainConfig

OTHER_PIXELS = "in place of all loader. options; pixels differ a little: docs/pixels.md"


class Changeable(Protocol):
    """A program that is made of a configuration."""

    config: TrainConfig
    workers: int

    def changed(self, **options: Any) -> TrainingProgram:
        """The same with other options of TrainConfig."""
        ...


def propose(program: Changeable, verdict: str, advice: Fix | None) -> list[Fix]:
    """The likeliest first; advice, which cannot be tried here, is the last."""
    return [*_PROPOSALS[verdict](program), *([advice] if advice else [])]


def _more_workers(program: Changeable) -> Iterator[Fix]:
    """More of them than cores only help who waits for files."""
    loader, cores, now = program.config.loader, available_cpus(), program.workers
    if option := loader.cores_option:
        for more in sorted({max(now + 1, cores // 2), cores} - set(range(now + 1))):
            yield _loader(program, f"loader.{option}={more}", "cores are idle", replace(loader, **{option: more}))


def _latency(program: Changeable) -> Iterator[Fix]:
    loader, now = program.config.loader, max(1, program.workers)
    if option := loader.cores_option:
        for times in (2, 4, 8):
            why = "more files are waited for at the same time"
            yield _loader(program, f"loader.{option}={times * now}", why, replace(loader, **{option: times * now}))


def _less_cpu(program: Changeable) -> Iterator[Fix]:
    loader = program.config.loader
    if loader.decodes_on == "gpu" and hasattr(loader, "hw_decoder_load"):
        for load in (0.3, 0.9):
            why = "another share for the hardware JPEG decoder"
            yield _loader(program, f"loader.hw_decoder_load={load}", why, replace(loader, hw_decoder_load=load))
        return
    if torch.cuda.is_available():
        yield _loader(program, "loader=dali", "decodes on the GPU", DaliConfig(device="gpu"), OTHER_PIXELS)
    if entry_of(loader).name != "dali":
        yield _loader(program, "loader=dali_cpu", "less CPU time for each image", DaliConfig(device="cpu"), OTHER_PIXELS)
    if entry_of(loader).name == "torch" and getattr(loader, "decoder", "") == "pil":
        faster = replace(loader, decoder="torchvision")
        yield _loader(program, "loader.decoder=torchvision", "a faster JPEG decoder", faster, OTHER_PIXELS)


def _smoother(program: Changeable) -> Iterator[Fix]:
    loader = program.config.loader
    for option, more in (("prefetch_factor", 8), ("prefetch_queue_depth", 6)):
        if hasattr(loader, option):
            yield _loader(program, f"loader.{option}={more}", "more lies ready", replace(loader, **{option: more}))


def _faster_step(program: Changeable) -> Iterator[Fix]:
    config = program.config
    if config.precision == "fp32":
        why = "the same network in half the bits"
        yield Fix("precision=bf16", why, program.changed(precision="bf16"), "model", note="weights are rounded differently")
    yield from _larger_batch(program, 2)


def _larger_batch(program: Changeable, times: int) -> Iterator[Fix]:
    size = program.config.batch_size * times
    changed = program.changed(batch_size=size)
    yield Fix(
        f"batch_size={size}",
        "what a step costs is shared by more images",
        changed,
        "model",
        note="another recipe: adapt lr",
    )


def _memory(program: Changeable) -> Iterator[Fix]:
    loader, half = program.config.loader, max(1, program.config.batch_size // 2)
    yield Fix(f"batch_size={half}", "takes half the memory", program.changed(batch_size=half), "model", note="adapt lr")
    if getattr(loader, "prefetch_factor", 1) > 1:
        yield _loader(program, "loader.prefetch_factor=1", "fewer batches lie ready", replace(loader, prefetch_factor=1))


def _contention(program: Changeable) -> Iterator[Fix]:
    yield from _less_cpu(program)
    yield from _faster_step(program)


def _transfer(program: Changeable) -> Iterator[Fix]:
    loader = program.config.loader
    yield _loader(program, "loader=dali", "only JPEGs go to the GPU", DaliConfig(device="auto"), OTHER_PIXELS)
    if hasattr(loader, "pin_memory") and hasattr(loader, "normalize_on"):
        sparing = replace(loader, pin_memory=True, normalize_on="device")
        yield _loader(program, "loader.pin_memory=true loader.normalize_on=device", "fewer bytes, faster", sparing)


def _few_workers(program: Changeable) -> Iterator[Fix]:
    yield from _more_workers(program)
    yield from _less_cpu(program)


def _loader(program: Changeable, what: str, why: str, loader: Any, note: str = "") -> Fix:
    return Fix(what, why, program.changed(loader=loader), "loader", note=note)


_PROPOSALS: dict[str, Callable[[Changeable], Iterator[Fix]]] = {
    "model-bound": _faster_step,
    "fetch-bound": _latency,
    "prep-bound (too few workers)": _few_workers,
    "prep-bound (CPU saturated)": _less_cpu,
    "cgroup-throttled": _less_cpu,
    "transfer-bound": _transfer,
    "sync-bound": lambda program: _larger_batch(program, 2),
    "launch-bound": lambda program: _larger_batch(program, 4),
    "decode-contention": _contention,
    "straggler": _smoother,
    "memory-bound": _memory,
    "inconclusive": lambda program: iter(()),
}
