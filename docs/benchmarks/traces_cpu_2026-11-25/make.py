"""Made traces.svg and result.json in this folder: python
docs/benchmarks/traces_cpu_2026-11-25/make.py IMAGES

Three steps of a small network with two loaders on the CPU, as torch.profiler records them under
dp.trace(), and what a span costs where nothing is traced.
"""

import itertools
import json
import sys
import timeit
from pathlib import Path

import torch
from matplotlib import pyplot
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

import dali_pipes as dp
from dali_pipes.system.provenance import provenance
from dali_pipes.system.traces import PREFIX, span

HERE = Path(__file__).parent
LOADERS = {
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
    "torch, no workers": dp.TorchConfig(num_workers=0),
}
COLORS = {
    "wait": "#d62728",
    "plan": "#9467bd",
    "read": "#8c564b",
    "decode": "#ff7f0e",
    "finish": "#e377c2",
    "targets": "#17becf",
}
COLORS |= {"step": "#2ca02c"}
ROWS = {"wait": 2, "step": 2, "finish": 0}
STEPS = 3


def recorded(manifest, config):
    """Begin and length in ms of each range, by its name, of a few steps."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )
    options = {"transform": dp.TrainTransform(), "batch_size": 32, "device": "cpu"}
    with dp.trace(), dp.build_loader(manifest, config, **options) as loader:
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        next(batches)
        every_thread = _ExperimentalConfig(profile_all_threads=True)
        with profile(
            activities=[ProfilerActivity.CPU], acc_events=True, experimental_config=every_thread
        ) as profiled:
            for _ in range(STEPS):
                images = next(batches).images
                with record_function(f"{PREFIX}step"):
                    for _ in range(8):
                        model(images).sum().backward()
    events = [each for each in profiled.events() if each.name.startswith(PREFIX)]
    first = min(each.time_range.start for each in events)
    return [
        (
            each.name.removeprefix(PREFIX),
            (each.time_range.start - first) / 1e3,
            each.time_range.elapsed_us() / 1e3,
        )
        for each in events
    ]


def draw(found):
    pyplot.switch_backend("svg")
    pyplot.rcParams["svg.fonttype"] = "none"
    figure, axes = pyplot.subplots(len(found), figsize=(10, 4), layout="constrained", sharex=True)
    for place, (name, ranges) in zip(axes, found.items(), strict=True):
        for kind in COLORS:
            row = ROWS.get(kind, 1)
            there = [(begin, length) for each, begin, length in ranges if each == kind]
            place.broken_barh(there, (row, 0.8), color=COLORS[kind], label=kind, linewidth=0)
        place.set_yticks(
            [0.4, 1.4, 2.4], ["threads of the loader", "parts in this thread", "wait, step"]
        )
        place.set_ylim(-0.1, 2.9)
        place.set_title(name, loc="left")
    axes[-1].set_xlabel("ms")
    labels = {
        label: handle
        for place in axes
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    figure.legend(labels.values(), labels.keys(), loc="outside right upper")
    figure.savefig(HERE / "traces.svg", metadata={"Date": None})


def main(images):
    torch.set_num_threads(1)
    manifest = dp.Manifest.scan(images, progress=False)
    found = {name: recorded(manifest, config) for name, config in LOADERS.items()}
    draw(found)
    off_ns = (
        min(timeit.repeat(lambda: span("read").__enter__(), number=100_000, repeat=7))
        / 100_000
        * 1e9
    )
    with dp.trace():
        on_us = (
            min(timeit.repeat(lambda: span("read").__enter__(), number=2_000, repeat=7))
            / 2_000
            * 1e6
        )
    origin = provenance(manifest.describe(), [])
    totals = {
        name: {
            kind: round(sum(length for each, _, length in ranges if each == kind), 2)
            for kind in {each for each, *_ in ranges}
        }
        for name, ranges in found.items()
    }
    result = {
        "ms_of_3_steps": totals,
        "span_off_ns": round(off_ns, 1),
        "span_on_us": round(on_us, 2),
    }
    result |= {key: origin[key] for key in ("versions", "data", "hardware", "commit")}
    (HERE / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["ms_of_3_steps"]), off_ns, on_us)


if __name__ == "__main__":
    main(sys.argv[1])
