"""What could be changed, for each verdict: in a configuration of dali-pipes train, and in any program."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch

from dali_pipes.backends.config import DaliConfig
from dali_pipes.backends.registry import entry_of
from dali_pipes.system.cpus import available_cpus
from dali_pipes.tools.diagnosis.program import Fix, TrainingProgram
from dali_pipes.tools.diagnosis.verdict import Figures, OneOffFigures
from dali_pipes.training.config import TrainConfig

OTHER_PIXELS = "pixels differ a little: docs/pixels.md"
_LEAST = 0.02  # lower bound of a share used as a divisor


class Changeable(Protocol):
    """A program that is made of a configuration."""

    config: TrainConfig
    workers: int

    def changed(self, **options: Any) -> TrainingProgram:
        """The same with other options of TrainConfig."""
        ...


def propose(program: Changeable, verdict: str) -> list[Fix]:
    """What can be tried, the likeliest first."""
    return [fix for proposals in _PROPOSALS[verdict] for fix in proposals(program)]


def _more_workers(program: Changeable) -> Iterator[Fix]:
    """More of them than cores only help who waits for files."""
    cores, now = available_cpus(), program.workers
    if option := program.config.loader.cores_option:
        for more in sorted({max(now + 1, cores // 2), cores} - set(range(now + 1))):
            yield _options(program, "cores are idle", {option: more})


def _latency(program: Changeable) -> Iterator[Fix]:
    if option := program.config.loader.cores_option:
        for times in (2, 4, 8):
            yield _options(program, "more files are waited for at the same time", {option: times * max(1, program.workers)})


def _less_cpu(program: Changeable) -> Iterator[Fix]:
    loader = program.config.loader
    if loader.decodes_on == "gpu" and hasattr(loader, "hw_decoder_load"):
        for load in (0.3, 0.9):
            yield _options(program, "another share for the hardware JPEG decoder", {"hw_decoder_load": load})
        return
    if torch.cuda.is_available():
        yield _dali(program, "loader=dali", "decodes on the GPU", "gpu")
    if entry_of(loader).name != "dali":
        yield _dali(program, "loader=dali_cpu", "less CPU time for each image", "cpu")
    if entry_of(loader).name == "torch" and getattr(loader, "decoder", "") == "pil":
        yield _options(program, "a faster JPEG decoder", {"decoder": "torchvision"}, OTHER_PIXELS)


def _smoother(program: Changeable) -> Iterator[Fix]:
    for option, more in (("prefetch_factor", 8), ("prefetch_queue_depth", 6)):
        if hasattr(program.config.loader, option):
            yield _options(program, "more lies ready", {option: more})


def _transfer(program: Changeable) -> Iterator[Fix]:
    loader = program.config.loader
    yield _dali(program, "loader=dali", "only JPEGs go to the GPU", "auto")
    if hasattr(loader, "pin_memory") and hasattr(loader, "normalize_on"):
        yield _options(program, "fewer bytes, faster", {"pin_memory": True, "normalize_on": "device"})


def _faster_step(program: Changeable) -> Iterator[Fix]:
    if program.config.precision == "fp32":
        changed = program.changed(precision="bf16")
        yield Fix("precision=bf16", "the same network in half the bits", changed, "model", note="weights are rounded differently")
    yield from _larger_batch(program)


def _larger_batch(program: Changeable, times: int = 2) -> Iterator[Fix]:
    why = "what a step costs is shared by more images"
    yield _batch(program, program.config.batch_size * times, why, "another recipe: adapt lr")


def _memory(program: Changeable) -> Iterator[Fix]:
    yield _batch(program, max(1, program.config.batch_size // 2), "takes half the memory", "adapt lr")
    if getattr(program.config.loader, "prefetch_factor", 1) > 1:
        yield _options(program, "fewer batches lie ready", {"prefetch_factor": 1})


def _options(program: Changeable, why: str, options: dict[str, Any], note: str = "") -> Fix:
    """Other options of the loader."""
    what = " ".join(f"loader.{name}={str(value).lower()}" for name, value in options.items())
    return Fix(what, why, program.changed(loader=replace(program.config.loader, **options)), note=note)


def _dali(program: Changeable, what: str, why: str, device: str) -> Fix:
    changed = program.changed(loader=DaliConfig(device=device))
    return Fix(what, why, changed, note=f"in place of all loader. options; {OTHER_PIXELS}")


def _batch(program: Changeable, size: int, why: str, note: str) -> Fix:
    return Fix(f"batch_size={size}", why, program.changed(batch_size=size), "model", note=note)


_PROPOSALS: dict[str, list[Callable[[Changeable], Iterator[Fix]]]] = {
    "model-bound": [_faster_step],
    "fetch-bound": [_latency],
    "prep-bound (too few workers)": [_more_workers, _less_cpu],
    "prep-bound (CPU saturated)": [_less_cpu],
    "cgroup-throttled": [_less_cpu],
    "transfer-bound": [_transfer],
    "sync-bound": [_larger_batch],
    "launch-bound": [lambda program: _larger_batch(program, 4)],
    "decode-contention": [_less_cpu, _faster_step],
    "straggler": [_smoother],
    "memory-bound": [_memory],
    "inconclusive": [],
}


def advice(verdict: str, found: Figures, one_off: OneOffFigures, workers: int) -> Iterator[Fix]:
    """What cannot be tried from here, with its calculated gain as far as there is one."""
    cores = len(os.sched_getaffinity(0))
    usable = min(workers, cores) / max(found.loader_cores, _LEAST)  # how much faster the loader would be if it never waited
    match verdict:
        case "fetch-bound" if one_off.is_fetched:
            what = "give the cache of shards more room (DALI_PIPES_CACHE_GB), or use a machine that is near the object store"
            yield Fix(what, "the network, not this machine, sets the pace", speeds_up={"loader": usable})
        case "fetch-bound":
            what = "copy the data to a local disk, or into memory (/dev/shm)"
            yield Fix(what, "workers that do not wait for data only compute", speeds_up={"loader": usable})
        case "straggler":
            what = "find the images that take long (those above, if any are named), and fix or remove them"
            yield Fix(what, "all others wait for them", speeds_up={"loader": 1 / max(1 - found.straggling, _LEAST)})
        case "sync-bound":
            what = "take .item(), print, .cpu(), sleeping and locks out of the step; read numbers some steps later"
            working = 1 - (found.blocked or 0.0) if one_off.device_busy is None else one_off.device_busy
            yield Fix(what, "it waits for them", speeds_up={"model": 1 / max(working, _LEAST)})
        case "cgroup-throttled":
            model, loader = (1 / max(1 - share, _LEAST) for share in (found.model_throttled, found.throttled))
            what = "raise the CPU quota of the container (docker --cpus, Kubernetes limits.cpu)"
            yield Fix(what, "it is used up", speeds_up={"model": model, "loader": loader})
        case "prep-bound (CPU saturated)" if found.others >= 0.25 * cores:
            yield Fix("stop the other programs, or give them other cores", "they keep ours busy", speeds_up={"loader": usable})
        case "prep-bound (CPU saturated)":
            yield Fix("prepare the images once: shorter side 256, JPEG", "there is less to decode for each of them")
        case "transfer-bound":
            yield Fix("pin_memory=True and non_blocking=True, uint8 instead of float, or decode on the GPU", "fewer bytes, faster")
        case "launch-bound":
            yield Fix("a larger batch_size", "what a step costs is shared by more images")
        case "memory-bound":
            yield Fix("a smaller batch_size, or fewer batches ahead", "takes less memory")
        case "model-bound":
            yield Fix("a faster step: bf16, torch.compile, channels_last, a larger batch", "the step sets the pace")
