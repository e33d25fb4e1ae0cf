"""One trial: one arm, in a process of its own, warmed up and measured; led by protocol.py.

It answers once its first batch has come. Told to go, it warms up and answers; told to go again, it measures and answers with the
figures, and works on until it is told to stop, so that trials that run at the same time disturb each other all the time. Told to go
instead, it is the next trial of the same arm.
"""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from dali_pipes.backends.base import Batch
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.loader.loader import Loader
from dali_pipes.measure.consume import Consumer, Touch, TrainStep
from dali_pipes.measure.stats import is_steady
from dali_pipes.measure.worker_process import Controller, serve
from dali_pipes.measure.workload import Workload, from_dict
from dali_pipes.system.telemetry import MIB, cgroup_cpu_seconds, cpu_seconds, throttled_seconds

GROUP_SECONDS = 0.5  # the least that one rate of the warm-up is taken over
GROUP_BATCHES = {"loader": 12, "train": 4}  # likewise


def run_trial(leader: Controller) -> None:
    """Answers with first_batch_s; after the warm-up with that and the GPU; after the window with its figures, times in seconds."""
    work = Workload.from_dict(leader.job["work"])
    start = time.monotonic()
    config = from_dict(leader.job["loader"])
    with work.loader(config) as loader:
        if work.workload == "cold":
            leader.send({})
            if leader.go():
                leader.send({"gpu": gpu_uuid()})
            if leader.go():
                leader.send(window(loader, iter(loader), Touch(), leader.stop, float("inf"), len(loader)))
            return
        batches = endless(loader)
        sample = next(batches)
        consume = TrainStep(sample, work.model) if work.model else Touch()
        consume(sample)
        consume.finish()
        leader.send({"first_batch_s": time.monotonic() - start})
        group_batches = whole_bursts(GROUP_BATCHES[work.workload], config)
        least = leader.job["min_seconds"], leader.job["min_batches"], whole_bursts(1, config)
        wanted = leader.go()
        while wanted:
            warm_up = _warm_up(batches, consume, leader.job["max_warmup_seconds"], group_batches)
            leader.send({"warm_up": warm_up, "gpu": gpu_uuid()})
            if _work_until_go(leader, batches, consume):
                leader.send(window(loader, batches, consume, leader.stop, *least))
            wanted = _work_until_go(leader, batches, consume)


def endless(loader: Loader) -> Iterator[Batch]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def whole_bursts(batches: int, config: LoaderConfig) -> int:
    """At least so many batches: worker processes deliver in bursts of one batch each, and a part of a burst has another rate."""
    burst = config.concurrency.burst
    return -(-batches // burst) * burst


def _work_until_go(leader: Controller, batches: Iterator[Batch], consume: Consumer) -> bool:
    """False once nothing more is wanted."""
    while not leader.has_spoken:
        consume(next(batches))
    return leader.go()


def _warm_up(batches: Iterator[Batch], consume: Consumer, at_most_s: float, group_batches: int) -> dict[str, Any]:
    """Takes batches until the rate is steady: what was prefetched is used up, caches are filled, clocks have settled."""
    start, images, rates = time.monotonic(), 0, list[float]()
    while not is_steady(rates) and time.monotonic() - start < at_most_s:
        group, group_start = 0, time.monotonic()
        for number in itertools.count(1):
            batch = next(batches)
            consume(batch)
            group += len(batch)
            if number >= group_batches and time.monotonic() - group_start >= GROUP_SECONDS:
                break
        consume.finish()
        rates.append(group / (time.monotonic() - group_start))
        images += group
    return {"seconds": time.monotonic() - start, "images": images, "steady": is_steady(rates), "rates": rates}


def window(
    loader: Loader,
    batches: Iterator[Batch],
    consume: Consumer,
    stop: threading.Event,
    seconds: float,
    min_batches: int,
    burst: int = 1,
) -> dict[str, Any]:
    """The clock runs over every fetch, and on a GPU until all of its work is done. Epochs follow each other without a pause.

    Args:
        seconds, min_batches: how long at least.
        burst: a number of batches that comes at once; only whole ones are counted.
    """
    images, device, waits, epoch_starts = 0, "", list[float](), list[int]()
    cpu, cgroup, throttled = cpu_seconds(), cgroup_cpu_seconds(os.getppid()), throttled_seconds()
    start = now = time.monotonic()
    while now - start < seconds or len(waits) < min_batches or len(waits) % burst:
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
    consume.finish()
    end = time.monotonic()
    return {
        "start": start,
        "end": end,
        "images": images,
        "images_per_s": images / (end - start),
        "cpu_s_per_1000_images": (cpu_seconds() - cpu) / images * 1e3,
        "cgroup_cpu_s_per_1000_images": _since(cgroup, cgroup_cpu_seconds(os.getppid()), images / 1e3),
        "throttled_s": _since(throttled, throttled_seconds(), 1),
        "waits_s": [round(wait, 6) for wait in waits],
        "epoch_starts": epoch_starts,
        "device": device,
        "decodes": loader.explain(),
        "pinned_mib": _pinned_mib(),
    }


def _since(before: float | None, after: float | None, each: float) -> float | None:
    return None if before is None or after is None else (after - before) / each


def gpu_uuid() -> str | None:
    """This process's GPU as NVML calls it."""
    return f"GPU-{torch.cuda.get_device_properties().uuid}" if torch.cuda.is_available() else None


def _pinned_mib() -> float | None:
    """The most page-locked memory that PyTorch has held; DALI tells no such figure of its own."""
    if not torch.cuda.is_available():
        return None
    return torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0) / MIB


if __name__ == "__main__":
    serve(run_trial)
