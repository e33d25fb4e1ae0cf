"""One arm, timed in a process of its own: `python -m dali_pipes.benchmark.measure` with a job on stdin."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from dali_pipes.batch import Batch
from dali_pipes.benchmark.work import Work, answer, from_plain
from dali_pipes.loader import Loader
from dali_pipes.telemetry import PeakMemory, cpu_seconds


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Takes batches as fast as they come.

    The clock runs over the whole fetch, and on a GPU until all of its work is done. Epochs follow each other without a pause.

    Returns:
        images_per_s; cpu_ms_per_image of the process tree; wait_ms (p50, p99, and the median
        for first batches of an epoch) for one batch; first_batch_s from building the
        loader to its first batch; peak_memory_mib (PSS of the process tree); images, seconds and device.
    """
    work = Work.from_plain(job["work"])
    started = time.perf_counter()
    with PeakMemory() as memory, work.loader(from_plain(job["loader"])) as loader:
        batches = _endless(loader)
        sample = next(batches)
        finish = _finisher(sample)
        finish()
        first_batch_s = time.perf_counter() - started
        for _ in range(job["warmup_batches"]):
            next(batches)
        finish()
        images = 0
        waits: list[float] = []
        first_of_epoch: list[bool] = []
        cpu, start = cpu_seconds(), time.perf_counter()
        now = start
        while now - start < job["seconds"] or len(waits) < job["min_batches"]:
            first_of_epoch.append(loader.batches_left == len(loader))
            images += len(next(batches))
            before, now = now, time.perf_counter()
            waits.append(now - before)
        finish()
        seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    in_ms, first = np.array(waits) * 1e3, np.array(first_of_epoch)
    p50, p99 = np.percentile(in_ms, [50, 99])
    borders = float(np.median(in_ms[first])) if first.any() else None
    return {
        "images_per_s": images / seconds,
        "cpu_ms_per_image": cpu / images * 1e3,
        "wait_ms": {"p50": float(p50), "p99": float(p99), "first_of_epoch_p50": borders},
        "first_batch_s": first_batch_s,
        "peak_memory_mib": memory.mib,
        "images": images,
        "seconds": seconds,
        "device": str(sample.images.device),
    }


def _endless(loader: Loader) -> Iterator[Batch]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _finisher(batch: Batch) -> Callable[[], None]:
    return torch.cuda.synchronize if batch.images.is_cuda else lambda: None


if __name__ == "__main__":
    answer(measure)
