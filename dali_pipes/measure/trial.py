"""One trial: an arm is warmed up and measured in a separate process, which protocol.py controls.

    the process                                       protocol.py
    first batch                  → {first_batch_s}
                                                    ← go
    (gives back memory           → {}
                                                    ← go)   if the job `rests`
    warm-up                      → {warm_up, gpu}
                                                    ← go    all processes have warmed up
    measuring                    → {the figures}
    goes on working until                           ← stop, or go: the next trial of the same arm

It goes on working so that trials that run at the same time disturb each other all the time. A
process that `rests` is suspended between its trials.
"""

import importlib
import itertools
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.loader.batch import Batch
from dali_pipes.loader.loader import Loader
from dali_pipes.measure.arms.unplanned import UnplannedLoader
from dali_pipes.measure.consumers import Consumer, Touch, TrainConsumer
from dali_pipes.measure.stats import is_steady
from dali_pipes.measure.workload import Workload, from_dict
from dali_pipes.system.child import Controller
from dali_pipes.system.gpu_memory import release_unused
from dali_pipes.system.telemetry import MIB, cgroup_cpu_seconds, cpu_seconds, throttled_seconds

MeasuredLoader = Loader | UnplannedLoader
GROUP_SECONDS = 0.5  # minimum duration of each rate that the warm-up measures
GROUP_BATCHES = {"loader": 12, "train": 4}  # minimum number of batches, likewise


def run_trial(controller: Controller) -> None:
    """Runs the trials of one arm in this process; the module's docstring lists the answers.

    Times are in seconds.
    """
    work = Workload.from_dict(controller.job["work"])
    if work.model:
        # has the networks; its import takes seconds, which are not the loader's
        importlib.import_module("torchvision")

    # the time to the first batch includes the start of the loader, but not that of Python
    start = time.monotonic()
    config = from_dict(controller.job["loader"])
    with work.arm_loader(config) as loader:
        # the model's step is built with the first batch, whose device it takes
        batches = repeat_epochs(loader)
        sample = next(batches)
        consume = TrainConsumer(sample, work.model) if work.model else Touch()
        consume(sample)
        consume.finish()
        controller.send({"first_batch_s": time.monotonic() - start})

        group_batches = whole_bursts(GROUP_BATCHES[work.workload], config)
        minimum = (
            controller.job["min_seconds"],
            controller.job["min_batches"],
            whole_bursts(1, config),
        )

        wanted = controller.go() and _release_memory(controller, consume)
        while wanted:
            warm_up = _warm_up(
                batches, consume, controller.job["max_warmup_seconds"], group_batches
            )
            controller.send({"warm_up": warm_up, "gpu": gpu_uuid()})
            if _work_until_go(controller, batches, consume):
                controller.send(measure_span(loader, batches, consume, controller.stop, *minimum))
            wanted = _work_until_go(controller, batches, consume) and _release_memory(
                controller, consume
            )


def repeat_epochs(loader: MeasuredLoader) -> Iterator[Batch]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def whole_bursts(batches: int, config: LoaderConfig) -> int:
    """Rounds `batches` up to whole bursts.

    Each worker delivers one batch per burst, and a part of a burst has another rate.
    """
    burst = config.concurrency.burst
    return -(-batches // burst) * burst


def _work_until_go(controller: Controller, batches: Iterator[Batch], consume: Consumer) -> bool:
    """Uses batches until the next "go", then returns True; on "stop" returns False."""
    while not controller.has_spoken:
        consume(next(batches))
    return controller.go()


def _release_memory(controller: Controller, consume: Consumer) -> bool:
    """Gives unused memory back if arms are suspended between their trials; False on "stop".

    Each arm has a model: ResNet-50's step keeps 11 GiB at 256 images, and seven arms held 79 GiB at
    once.
    """
    if not controller.job.get("rests"):
        return True
    consume.finish()
    release_unused()
    controller.send({})
    return controller.go()


def _warm_up(
    batches: Iterator[Batch], consume: Consumer, at_most_s: float, group_batches: int
) -> dict[str, Any]:
    """Uses batches until the rate is steady, for at most about `at_most_s` seconds.

    Then prefetched batches are used up, caches are filled, and clocks have settled.

    Returns:
        seconds, images, steady, and rates: the images/s of each group of batches.
    """
    start, images, rates = time.monotonic(), 0, list[float]()

    # a rate over a few batches would vary with single ones
    while not is_steady(rates) and time.monotonic() - start < at_most_s:
        group, group_start = 0, time.monotonic()
        for number in itertools.count(1):
            batch = next(batches)
            consume(batch)
            group += len(batch)
            if number >= group_batches and time.monotonic() - group_start >= GROUP_SECONDS:
                break

        # the rate of a group includes the device's work on it
        consume.finish()
        rates.append(group / (time.monotonic() - group_start))
        images += group

    return {
        "seconds": time.monotonic() - start,
        "images": images,
        "steady": is_steady(rates),
        "rates": rates,
    }


def measure_span(
    loader: MeasuredLoader,
    batches: Iterator[Batch],
    consume: Consumer,
    stop: threading.Event,
    seconds: float,
    min_batches: int,
    burst: int = 1,
) -> dict[str, Any]:
    """Measures one span: all fetches and all work on the batches, also on a GPU.

    The span ends early after `stop` or the last batch. Epochs follow each other without a pause.

    Args:
        seconds, min_batches: minimum duration.
        burst: batches that arrive at once; only whole bursts are counted.

    Returns:
        `JobFigures`.
    """
    images, device, waits, epoch_starts = 0, "", list[float](), list[int]()
    # the cgroup has a figure if it holds this run only: the parent process and its descendants
    cpu, cgroup, throttled = cpu_seconds(), cgroup_cpu_seconds(os.getppid()), throttled_seconds()
    start = now = time.monotonic()

    while now - start < seconds or len(waits) < min_batches or len(waits) % burst:
        # to be asked before the epoch's first batch is taken
        new_epoch = loader.batches_left == len(loader)
        before = time.monotonic()
        batch = next(batches, None)
        if batch is None:
            break
        if new_epoch:
            epoch_starts.append(len(waits))

        waits.append(time.monotonic() - before)
        images, device = images + len(batch), str(batch.images.device)
        consume(batch)
        now = time.monotonic()
        if stop.is_set():
            break

    # the device has to finish its work on all images that were counted
    consume.finish()
    end = time.monotonic()

    return {
        "start": start,
        "end": end,
        "images": images,
        "images_per_s": images / (end - start),
        "cpu_s_per_1000_images": (cpu_seconds() - cpu) / images * 1e3,
        "cgroup_cpu_s_per_1000_images": _since(
            cgroup, cgroup_cpu_seconds(os.getppid()), images / 1e3
        ),
        "throttled_s": _since(throttled, throttled_seconds(), 1),
        # microseconds are enough for a file that has one for each batch
        "waits_s": [round(wait, 6) for wait in waits],
        "epoch_starts": epoch_starts,
        "device": device,
        "decodes": loader.decodes,
        "pinned_mib": _pinned_mib(),
    }


def _since(before: float | None, after: float | None, count: float) -> float | None:
    return None if before is None or after is None else (after - before) / count


def gpu_uuid() -> str | None:
    """The NVML UUID of this process's GPU; None without a GPU."""
    return f"GPU-{torch.cuda.get_device_properties().uuid}" if torch.cuda.is_available() else None


def _pinned_mib() -> float | None:
    """PyTorch's peak of page-locked memory, in MiB; DALI does not report its own."""
    if not torch.cuda.is_available():
        return None
    return torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0) / MIB
