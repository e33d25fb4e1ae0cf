"""What ResNet-50 waits for when DALI makes its batches, by the way out of DALI's memory.

    PYTHONPATH=.:scripts python docs/benchmarks/gpu_h200_2026-11-27_graph/waits.py MANIFEST SECONDS OUT.json

It runs at commit 5e296680, which has gpu_check.copies.

Every variant trains for some steps, in rounds of random order. At the end PyTorch's profiler records
what the threads called of CUDA, and where the training stream had nothing to do.
"""

import json
import random
import statistics
import sys
import time
from collections import defaultdict
from typing import Any

import torch
from gpu_check.copies import Work, copied_by_hand, copied_by_the_iterator, exported
from torch.profiler import ProfilerActivity, profile

import dali_pipes.training.step as step_module
from dali_pipes.backends.dali.backend import DaliBackend
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.data.manifest import Manifest
from dali_pipes.measure.consumers import TrainConsumer
from dali_pipes.plan.plan import Plan
from dali_pipes.plan.transforms import TrainTransform

ON_GPU = torch.cuda.is_available()
BATCH, MODEL, STEPS, WARM_UP = (
    (256, "resnet50", 20, 6) if ON_GPU else (4, "shufflenet_v2_x0_5", 3, 1)
)
DEVICE = torch.device("cuda", 0) if ON_GPU else torch.device("cpu")
# by name: a way out of DALI's memory, options of the loader, and how many steps the host is ahead
VARIANTS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "synthetic": (None, {}, 2),
    "exported": (exported, {}, 2),
    "exported, queue of 4": (exported, {"prefetch_queue_depth": 4}, 2),
    "exported, one step ahead": (exported, {}, 1),
    "by hand": (copied_by_hand, {}, 2),
    "by hand, 4 threads": (copied_by_hand, {"num_threads": 4}, 2),
    "by the iterator": (copied_by_the_iterator, {}, 2),
    "exported, engine 0.5": (exported, {"hw_decoder_load": 0.5}, 2),
}


def main(manifest: str, seconds: float, out: str) -> None:
    end = time.monotonic() + seconds
    images = Manifest.load(manifest)
    form = TrainTransform(dtype="fp16", memory_format="channels_last")
    transform = form if ON_GPU else TrainTransform(size=64)
    batches: dict[str, Any] = {}
    for name, (way, options, _) in VARIANTS.items():
        if way:
            fixed = {"num_threads": 8} if ON_GPU else {"num_threads": 2, "resize": "dali"}
            config = DaliConfig(**fixed | options).on_cores()
            plan = Plan(images, transform, BATCH, seed=0, last_batch="pad")
            backend = DaliBackend(images, transform, config, BATCH, DEVICE)
            batches[name] = way(Work(plan, transform, backend, DEVICE))
    first = next(batches["exported"])
    consumers = {}
    for ahead in (1, 2):
        step_module.STEPS_AHEAD = ahead
        consumers[ahead] = TrainConsumer(first, MODEL)

    def steps(name: str, count: int) -> float:
        """Seconds that the host was in the loader."""
        ahead, waited = VARIANTS[name][2], 0.0
        step_module.STEPS_AHEAD = ahead
        for _ in range(count):
            start = time.monotonic()
            batch = next(batches[name]) if name in batches else first
            waited += time.monotonic() - start
            consumers[ahead](batch)
        consumers[ahead].finish()
        return waited

    windows: list[dict[str, Any]] = []
    found: dict[str, Any] = {"windows": windows}
    choice, number, spent = random.Random(0), 0, 0.0
    for name in VARIANTS:
        steps(name, WARM_UP)
    while number == 0 or time.monotonic() + spent / number < end - 12:
        begun = time.monotonic()
        for name in choice.sample(list(VARIANTS), len(VARIANTS)):
            steps(name, WARM_UP)
            start = time.monotonic()
            waited = steps(name, STEPS)
            took = time.monotonic() - start
            windows.append(
                {
                    "round": number,
                    "variant": name,
                    "images_per_s": STEPS * BATCH / took,
                    "wait_ms": waited / STEPS * 1e3,
                }
            )
        number, spent = number + 1, spent + time.monotonic() - begun
    base = {
        each["round"]: each["images_per_s"] for each in windows if each["variant"] == "synthetic"
    }
    for name in VARIANTS:
        mine = [each for each in windows if each["variant"] == name]
        ratios = [each["images_per_s"] / base[each["round"]] for each in mine]
        found[name] = {
            "images_per_s": statistics.median(each["images_per_s"] for each in mine),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
            "wait_ms": statistics.median(each["wait_ms"] for each in mine),
        }
        print(name, found[name], flush=True)
    write(found, out)
    for name in ("exported", "by hand"):
        found[f"trace of {name}"] = trace(lambda: steps(name, 8))  # noqa: B023
        write(found, out)


def write(found: dict[str, Any], out: str) -> None:
    with open(out, "w") as file:
        json.dump(found, file, indent=1)


def trace(run: Any) -> dict[str, Any]:
    """CUDA's functions by thread, and the training stream's pauses."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        run()
    calls: dict[str, list[float]] = defaultdict(list)
    streams: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for event in seen.profiler.kineto_results.events():
        start, took, name = event.start_ns(), event.duration_ns(), event.name()
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            streams[event.device_resource_id()].append((start, start + took, name))
        elif name.startswith("cu"):
            calls[f"{event.start_thread_id()} {name}"].append(took / 1e6)
    found: dict[str, Any] = {
        "calls": {
            name: {"count": len(each), "sum_ms": sum(each), "max_ms": max(each)}
            for name, each in sorted(calls.items(), key=lambda one: -sum(one[1]))[:40]
        }
    }
    busiest = max(streams, key=lambda stream: len(streams[stream]), default=None)
    if busiest is not None:
        events, pauses = sorted(streams[busiest]), []
        until, last = events[0][1], events[0][2]
        for start, stop, name in events:
            if start - until > 200_000:
                pauses.append(
                    {"ms": (start - until) / 1e6, "after": last[:90], "before": name[:90]}
                )
            if stop > until:
                until, last = stop, name
        found["pauses"] = pauses
    return found


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
