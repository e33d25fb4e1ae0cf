"""ResNet-50 from synthetic batches and from DALI's, in turns in one process: what slows training down.

    PYTHONPATH=.:scripts python docs/benchmarks/gpu_h200_2026-11-27_graph/training.py MANIFEST SECONDS OUT.json

Every loader is tried on PyTorch's default stream, and on one of high priority, whose kernels a GPU
runs before those of DALI's streams. The rounds are in random order. At the end PyTorch's profiler
says how long the kernels of ten steps took, by stream.
"""

import contextlib
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.measure.arms.native import DaliNativeConfig
from dali_pipes.measure.arms.synthetic import SyntheticConfig
from dali_pipes.measure.consumers import TrainConsumer
from dali_pipes.measure.trial import repeat_epochs
from dali_pipes.measure.workload import Workload
from dali_pipes.plan.transforms import TrainTransform
from dali_pipes.system.telemetry import cpu_seconds

ON_GPU = torch.cuda.is_available()
BATCH, MODEL, STEPS, WARM_UP = (
    (256, "resnet50", 20, 6) if ON_GPU else (4, "shufflenet_v2_x0_5", 3, 1)
)
LOADERS = {
    "synthetic": SyntheticConfig(),
    "dali": DaliConfig(num_threads=8),
    "dali, 4 threads": DaliConfig(num_threads=4),
    "dali, hw_decoder_load=1": DaliConfig(num_threads=8, hw_decoder_load=1.0),
    "dali, hw_decoder_load=0.8": DaliConfig(num_threads=8, hw_decoder_load=0.8),
    "dali_native_fancy": DaliNativeConfig(num_threads=8, decode="auto", jpeg_fancy_upsampling=True),
}
PRIORITIES = {"default": 0, "high": -1} if ON_GPU else {"default": 0}


def main(manifest: str, seconds: float, out: str) -> None:
    end = time.monotonic() + seconds
    transform = TrainTransform(dtype="fp16", memory_format="channels_last")
    if not ON_GPU:
        transform = TrainTransform(size=64)
    work = Workload(manifest, transform, BATCH, seed=0)

    with contextlib.ExitStack() as stack:
        loaders = {
            name: stack.enter_context(work.arm_loader(config)) for name, config in LOADERS.items()
        }
        batches = {name: repeat_epochs(loader) for name, loader in loaders.items()}
        consume = TrainConsumer(next(batches["synthetic"]), MODEL)
        streams = {
            name: torch.cuda.Stream(priority=priority) if priority else contextlib.nullcontext()
            for name, priority in PRIORITIES.items()
        }

        def on(priority: str) -> Any:
            stream = streams[priority]
            return torch.cuda.stream(stream) if isinstance(stream, torch.cuda.Stream) else stream

        def steps(name: str, priority: str, count: int) -> None:
            with on(priority):
                for _ in range(count):
                    consume(next(batches[name]))
                consume.finish()

        rounds: list[dict[str, Any]] = []
        kinds = [(name, priority) for name in LOADERS for priority in PRIORITIES]
        choice, begun, spent = random.Random(0), 0, 0.0
        for name, priority in kinds:
            steps(name, priority, WARM_UP)
        while begun == 0 or time.monotonic() + spent / begun < end - 15:
            start_of_round = time.monotonic()
            for name, priority in choice.sample(kinds, len(kinds)):
                steps(name, priority, WARM_UP)
                cpu, start = cpu_seconds(), time.monotonic()
                steps(name, priority, STEPS)
                images = STEPS * BATCH
                rounds.append(
                    {
                        "round": begun,
                        "loader": name,
                        "stream": priority,
                        "images_per_s": images / (time.monotonic() - start),
                        "cpu_s_per_1000_images": (cpu_seconds() - cpu) / images * 1e3,
                    }
                )
            begun, spent = begun + 1, spent + time.monotonic() - start_of_round

        found = {"rounds": begun, "summary": summary(rounds), "windows": rounds}
        write(found, out)
        found["kernels"] = {
            f"{name}, {priority}": kernels(lambda: steps(name, priority, 10))  # noqa: B023
            for name, priority in kinds
            if ON_GPU and name in ("synthetic", "dali", "dali, hw_decoder_load=1")
        }
        write(found, out)


def write(found: dict[str, Any], out: str) -> None:
    with open(out, "w") as file:
        json.dump(found, file, indent=1)


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians, and the ratio of each round to synthetic on the default stream."""
    base = {
        each["round"]: each["images_per_s"]
        for each in rounds
        if (each["loader"], each["stream"]) == ("synthetic", "default")
    }
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in rounds:
        found[f"{each['loader']}, {each['stream']}"].append(each)
    return {
        name: {
            "images_per_s": statistics.median(each["images_per_s"] for each in mine),
            "ratio": statistics.median(each["images_per_s"] / base[each["round"]] for each in mine),
            "ratios": [round(each["images_per_s"] / base[each["round"]], 4) for each in mine],
            "cpu_s_per_1000_images": statistics.median(
                each["cpu_s_per_1000_images"] for each in mine
            ),
        }
        for name, mine in found.items()
    }


def kernels(run: Any) -> dict[str, Any]:
    """Milliseconds of kernels and copies by stream: their sum, and how long any of them ran."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
    by_stream: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for event in seen.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            start = event.start_ns()
            by_stream[event.device_resource_id()].append(
                (start, start + event.duration_ns(), event.name())
            )
    found = {}
    for stream, events in by_stream.items():
        busy, until = 0, 0
        for start, stop, _ in sorted(events):
            busy += max(0, stop - max(start, until))
            until = max(until, stop)
        longest: dict[str, float] = defaultdict(float)
        for start, stop, name in events:
            longest[name[:80]] += (stop - start) / 1e6
        found[str(stream)] = {
            "events": len(events),
            "sum_ms": sum(stop - start for start, stop, _ in events) / 1e6,
            "busy_ms": busy / 1e6,
            "span_ms": (max(e[1] for e in events) - min(e[0] for e in events)) / 1e6,
            "longest": dict(sorted(longest.items(), key=lambda each: -each[1])[:6]),
        }
    return found


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
