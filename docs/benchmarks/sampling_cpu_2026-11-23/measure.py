"""Made the files in this folder: python docs/benchmarks/sampling_cpu_2026-11-23/measure.py

cost.json, cost.md   CPU microseconds to plan one image, and what is set up, by sampling; uniform
orders of up to 10**9 images sampling.svg         which image stands where in two epochs of each
sampling; the docs show it
"""

import json
import sys
import time
from pathlib import Path

import matplotlib
import numpy as np
import pyarrow as pa

import dali_pipes as dp
from dali_pipes.data.table.schema import SCHEMA
from dali_pipes.plan.sampling import parse_sampling
from dali_pipes.system.provenance import provenance

matplotlib.use("svg")
matplotlib.rcParams["svg.fonttype"], matplotlib.rcParams["svg.hashsalt"] = "none", "sampling"
HERE, BATCH, ROUNDS = Path(__file__).parent, 256, 5
SAMPLINGS = {
    "uniform": "uniform",
    "sequential": "sequential",
    "weighted": {"name": "weighted", "weights": "weight"},
    "balanced": "balanced",
    "per_class": {"name": "per_class", "classes": 32, "samples": 8},
    "repeated": "repeated",
    "mixture": "mixture",
}


def images(classes):
    """A manifest of images that do not exist: a plan looks at none."""
    count = len(classes)
    columns = {
        "path": [b"x.jpg"] * count,
        "member": [b""] * count,
        "format": ["JPEG"] * count,
        "subsampling": [""] * count,
    }
    numbers = {
        "label": classes,
        "height": np.full(count, 375),
        "width": np.full(count, 500),
        "bytes": np.full(count, 1),
    }
    numbers |= {name: np.zeros(count, np.int64) for name in ("mtime_ns", "offset", "file_bytes")}
    columns |= numbers | {
        "orientation": np.ones(count, np.int8),
        "decoded": np.zeros(count, bool),
        "problem": [None] * count,
    }
    table = pa.table(columns).select(SCHEMA.names).cast(SCHEMA)
    table = table.append_column(
        "column:weight", pa.array((np.arange(count) % 7 + 1).astype(np.float32))
    )
    return dp.Manifest("/nowhere", [str(each) for each in range(int(classes.max()) + 1)], table)


def cpu(function):
    start = time.process_time()
    made = function()
    return time.process_time() - start, made


def plan(manifest, sampling, batch=BATCH):
    if sampling == "mixture":
        cut = len(manifest) // 3
        parts = [manifest.subset(np.arange(cut)), manifest.subset(np.arange(cut, len(manifest)))]
        manifest = dp.Manifest.mix({"a": (parts[0], 0.5), "b": (parts[1], 0.5)})
    return dp.Plan(manifest, dp.TrainTransform(), batch, sampling=parse_sampling(sampling))


def cost(count):
    """By sampling: seconds until the first batch is planned, then microseconds an image; the median
    of rounds.
    """
    manifest, found = images(np.arange(count) % 1000), {}
    for name, sampling in SAMPLINGS.items():
        setup, planned = cpu(lambda sampling=sampling: plan(manifest, sampling))
        setup += cpu(lambda planned=planned: planned.batch(0, 0))[0]
        rows = planned.iter_from(0, 1)
        steady = []
        for _ in range(ROUNDS):
            seconds, _ = cpu(lambda rows=rows: [next(rows) for _ in range(200)])
            steady.append(seconds / 200 / BATCH * 1e6)
        found[name] = {
            "set_up_cpu_s": round(setup, 3),
            "cpu_us_per_image": round(float(np.median(steady)), 2),
        }
    return found


def uniform(count):
    """The ids of one batch of a uniform order, where it is stored and where it is a bijection."""
    order = parse_sampling("uniform").order(range(count), 0, BATCH)
    first, _ = cpu(lambda: order.ids(0, np.arange(BATCH)))
    later = [
        cpu(lambda step=step: order.ids(0, np.arange(1024) + 1024 * step))[0]
        for step in range(1, 200)
    ]
    return {
        "first_batch_cpu_ms": round(first * 1e3, 2),
        "cpu_us_per_image": round(float(np.mean(later)) / 1024 * 1e6, 2),
    }


def draw():
    from matplotlib import pyplot as plt

    classes = np.repeat([0, 1, 2], [12, 6, 3])
    manifest = images(classes)
    panels = {
        "uniform": "uniform",
        "epoch_size=14": {"name": "uniform", "epoch_size": 14},
        "weighted, 1 : 2 : 4 by class": {"name": "weighted", "weights": {"0": 1, "1": 2, "2": 4}},
        "balanced": "balanced",
        "per_class, 2 × 3": {"name": "per_class", "classes": 2, "samples": 3, "epoch_size": 18},
        "repeated, 3 times": {"name": "repeated", "times": 3, "epoch_size": 18},
        "repeated, spread": {"name": "repeated", "times": 3, "spread": True, "epoch_size": 18},
        "mixture, 2/3 of source a, 1/3 of b": "mixture",
    }
    figure, axes = plt.subplots(4, 2, figsize=(9, 11), constrained_layout=True)
    shades = plt.get_cmap("tab20c")
    for axis, (title, sampling) in zip(axes.T.ravel(), panels.items(), strict=True):
        shown, group = manifest, classes
        if sampling == "mixture":
            parts = {"a": (manifest.subset(range(12)), 2), "b": (manifest.subset(range(12, 21)), 1)}
            shown = dp.Manifest.mix(parts)
            group, sampling = shown.columns["source"], {"name": "mixture", "epoch_size": 18}
        planned = dp.Plan(
            shown, dp.TrainTransform(), 6, sampling=parse_sampling(sampling), last_batch="partial"
        )
        epochs = [planned.order(epoch) for epoch in range(2)]
        rows = [ids[start : start + 6] for ids in epochs for start in range(0, len(ids), 6)]
        for y, ids in enumerate(rows):
            for x, each in enumerate(ids.tolist()):
                axis.add_patch(
                    plt.Rectangle((x, y), 0.94, 0.94, color=shades(int(group[each]) * 4 + 1))
                )
                axis.text(x + 0.47, y + 0.5, each, ha="center", va="center", fontsize=8)
        first = -(-len(epochs[0]) // 6)
        axis.axhline(first - 0.03, color="black", linewidth=1.5)
        axis.set(xlim=(0, 6), ylim=(len(rows), 0), yticks=np.arange(len(rows)) + 0.5, xticks=[])
        names = [
            f"{'' if y % first else f'epoch {y // first}, '}batch {y % first}"
            for y in range(len(rows))
        ]
        axis.set_yticklabels(names, fontsize=7)
        axis.set_title(title, fontsize=10)
        axis.set_frame_on(False)
        axis.tick_params(length=0)
    figure.savefig(HERE / "sampling.svg", metadata={"Date": None})


def main():
    result = {"planning": {f"{count:,} images": cost(count) for count in (10**6, 10**7)}}
    result["order"] = {
        f"{count:,} images": uniform(count) for count in (10**6, 10**7, 2**24, 10**8, 10**9)
    }
    result |= {
        key: value
        for key, value in provenance({}, []).items()
        if key in ("date", "hardware", "commit")
    }
    (HERE / "cost.json").write_text(json.dumps(result, indent=1) + "\n")
    lines = [
        "| sampling | planning, CPU-µs an image | × uniform | set up, CPU-s |",
        "|---|---|---|---|",
    ]
    for name, each in result["planning"]["1,000,000 images"].items():
        times = (
            each["cpu_us_per_image"]
            / result["planning"]["1,000,000 images"]["uniform"]["cpu_us_per_image"]
        )
        lines.append(
            f"| `{name}` | {each['cpu_us_per_image']:.2f} | {times:.2f} | "
            f"{each['set_up_cpu_s']:.2f} |"
        )
    lines += [
        "",
        "| uniform order of | an epoch's first batch, CPU-ms | then, CPU-µs an image |",
        "|---|---|---|",
    ]
    lines += [
        f"| {name} | {each['first_batch_cpu_ms']} | {each['cpu_us_per_image']} |"
        for name, each in result["order"].items()
    ]
    (HERE / "cost.md").write_text("\n".join(lines) + "\n")
    draw()


if __name__ == "__main__":
    if sys.argv[1:] == ["draw"]:
        draw()
    else:
        main()
