"""Profiles the DALI loader in a separate process: CPU time by thread, GPU time by kernel."""

import os
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.measure.consumers import Touch
from dali_pipes.measure.trial import repeat_epochs
from dali_pipes.measure.worker_process import MeasuringProcess
from dali_pipes.measure.workload import Workload, from_dict, to_dict
from dali_pipes.system.child import Controller

SECONDS = 2.0
LONGEST = 12  # kernels that are named
_TICKS = os.sysconf("SC_CLK_TCK")


def profiled(work: Workload, config: DaliConfig, seconds: float) -> dict[str, Any]:
    """Profiles one loader.

    Returns:
        images_per_s; cpu_s_per_1000_images, of "all" threads and by their names (Python's main
        thread is "main"); and gpu_ms_per_1000_images of the longest kernels and copies (empty
        without a GPU).

    Raises:
        ArmError: the process failed, or took longer than `seconds`.
    """
    job = {"work": work.to_dict(), "loader": to_dict(config)}
    with MeasuringProcess(
        f"{__name__}:measure", job, "profile", os.sched_getaffinity(0), limit_s=seconds
    ) as process:
        return process.answer()


def thread_seconds() -> dict[str, float]:
    """The CPU seconds of this process's threads, by their names without numbers at the end."""
    found: dict[str, float] = defaultdict(float)
    for task in Path("/proc/self/task").iterdir():
        try:
            name, stat = (task / "comm").read_text().strip(), (task / "stat").read_text()
        except OSError:
            continue  # the thread has ended
        # a name may contain spaces and ")", so fields are counted from the last ")"
        user, system = stat.rpartition(")")[2].split()[11:13]
        found["main" if int(task.name) == os.getpid() else name.rstrip("0123456789")] += (
            int(user) + int(system)
        ) / _TICKS

    return found


def measure(controller: Controller) -> None:
    work = Workload.from_dict(controller.job["work"])
    with work.arm_loader(from_dict(controller.job["loader"])) as loader:
        batches, touch = repeat_epochs(loader), Touch()

        def run(seconds: float) -> int:
            end, images = time.monotonic() + seconds, 0
            while time.monotonic() < end:
                batch = next(batches)
                images += len(batch)
                touch(batch)
            touch.finish()
            return images

        # a warm-up
        run(1.0)

        before, start = thread_seconds(), time.monotonic()
        images = run(SECONDS)
        found = {"images_per_s": images / (time.monotonic() - start)}

        spent = {
            name: (seconds - before.get(name, 0)) / images * 1e3
            for name, seconds in thread_seconds().items()
        }
        used = dict(
            sorted(
                ((name, each) for name, each in spent.items() if each > 0), key=lambda one: -one[1]
            )
        )

        controller.send(
            found
            | {
                "cpu_s_per_1000_images": {"all": sum(used.values())} | used,
                "gpu_ms_per_1000_images": _kernels(run),
            }
        )


def _kernels(run: Any) -> dict[str, float]:
    if not torch.cuda.is_available():
        return {}
    # a separate span, since profiling slows the loader down
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        images = run(SECONDS / 2)

    longest = sorted(
        seen.key_averages(), key=lambda each: each.self_device_time_total, reverse=True
    )[:LONGEST]

    return {
        each.key: each.self_device_time_total / images
        for each in longest
        if each.self_device_time_total
    }
