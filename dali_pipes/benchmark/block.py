"""One block: one arm, in a process of its own, warmed up and measured; led by protocol.py.

It answers when it is ready, measures when it is told to go, answers with the figures, and works on until it is told to stop, so
that blocks that run at the same time disturb each other all the time.
"""

import itertools
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from dali_pipes.batch import Batch
from dali_pipes.benchmark.consume import Consumer, Touch, TrainStep
from dali_pipes.benchmark.fresh_process import Leader, led
from dali_pipes.benchmark.stats import is_steady
from dali_pipes.benchmark.work import Work, from_plain
from dali_pipes.config import LoaderConfig, TorchConfig
from dali_pipes.loader import Loader
from dali_pipes.telemetry import MIB, cgroup_cpu_seconds, cpu_seconds, throttled_seconds

GROUP_SECONDS = 0.5  # the least that one rate of the warm-up is taken over
GROUP_BATCHES = {"loader": 12, "train": 4}  # likewise


def run_block(leader: Leader) -> None:
    """Answers when it is ready (first_batch_s, the warm-up, the GPU) and after the window (its figures, times in seconds)."""
    work = Work.from_plain(leader.job["work"])
    start = time.monotonic()
    config = from_plain(leader.job["loader"])
    with work.loader(config) as loader:
        if work.workload == "cold":
            leader.tell({"gpu": _gpu()})
            leader.go.wait()
            if not leader.stop.is_set():
                leader.tell(_window(loader, iter(loader), Touch(), float("inf"), len(loader), leader.stop))
            return
        batches = _endless(loader)
        sample = next(batches)
        consume = TrainStep(sample, work.model) if work.model else Touch()
        consume(sample)
        consume.finish()
        first_batch_s = time.monotonic() - start
        group_batches = _whole_bursts(GROUP_BATCHES[work.workload], config)
        warm_up = _warm_up(batches, consume, leader.job["max_warmup_seconds"], group_batches)
        leader.tell({"first_batch_s": first_batch_s, "warm_up": warm_up, "gpu": _gpu()})
        _take_until(leader.go, batches, consume)
        if not leader.stop.is_set():
            least = leader.job["min_seconds"], leader.job["min_batches"]
            leader.tell(_window(loader, batches, consume, *least, leader.stop))
        _take_until(leader.stop, batches, consume)


def _endless(loader: Loader) -> Iterator[Batch]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _whole_bursts(batches: int, config: LoaderConfig) -> int:
    """At least so many batches: worker processes deliver in bursts of one batch each, and a part of a burst has another rate."""
    workers = (config.num_workers if isinstance(config, TorchConfig) else None) or 1
    return -(-batches // workers) * workers


def _take_until(event: threading.Event, batches: Iterator[Batch], consume: Consumer) -> None:
    while not event.is_set():
        consume(next(batches))


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


def _window(
    loader: Loader, batches: Iterator[Batch], consume: Consumer, seconds: float, min_batches: int, stop: threading.Event
) -> dict[str, Any]:
    """The clock runs over every fetch, and on a GPU until all of its work is done. Epochs follow each other without a pause."""
    images, device, waits, epoch_starts = 0, "", list[float](), list[int]()
    cpu, cgroup, throttled = cpu_seconds(), cgroup_cpu_seconds(os.getppid()), throttled_seconds()
    start = now = time.monotonic()
    while now - start < seconds or len(waits) < min_batches:
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
        "pinned_mib": _pinned_mib(),
    }


def _since(before: float | None, after: float | None, each: float) -> float | None:
    return None if before is None or after is None else (after - before) / each


def _gpu() -> str | None:
    """This process's GPU as NVML calls it."""
    return f"GPU-{torch.cuda.get_device_properties().uuid}" if torch.cuda.is_available() else None


def _pinned_mib() -> float | None:
    """The most page-locked memory that PyTorch has held; DALI tells no such figure of its own."""
    if not torch.cuda.is_available():
        return None
    return torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0) / MIB


if __name__ == "__main__":
    led(run_block)
