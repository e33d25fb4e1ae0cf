"""Made result.json here: python docs/benchmarks/dtypes_cpu_2026-11-23/measure.py IMAGES [ROUNDS]

What a dtype costs on the CPU: in every round each loader makes the same number of batches with each
dtype, in random order; a ratio is taken within the round, against fp32 from the same loader. CPU
time is read when nothing is left to make, before and after, so that batches made ahead do not
count. And what fp16 and bf16 do to the pixels.
"""

import itertools
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import psutil
from dali_pipes.backends.common.pixels import to_steps

import dali_pipes as dp
from dali_pipes.data.images import repeat_epoch, warm_page_cache
from dali_pipes.measure.agreement import difference
from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.progress import track
from dali_pipes.system.provenance import provenance

LOADERS = {"torch": dp.TorchConfig(num_workers=2), "dali_cpu": dp.DaliConfig(device="cpu")}
DTYPES = {"fp32": "fp32", "fp32 again": "fp32", "fp16": "fp16", "bf16": "bf16"}
BATCH, BATCHES, WARM_UP = 64, 8, 1


def cpu_seconds():
    """Of this process and its workers."""
    return sum(
        sum(process.cpu_times()[:2])
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]
    )


def settled():
    """CPU seconds, once the loader has made all that it makes ahead."""
    before = -1.0
    while (now := cpu_seconds()) > before:
        before = now
        time.sleep(0.3)
    return now


def cpu_ms(manifest, loader, dtype):
    """An image."""
    transform = dp.TrainTransform(dtype=DTYPES[dtype])
    with dp.build_loader(
        manifest, LOADERS[loader], transform=transform, batch_size=BATCH, device="cpu"
    ) as built:
        batches = itertools.chain.from_iterable(itertools.repeat(built))
        for _ in range(WARM_UP):
            next(batches)
        before = settled()
        images = sum(len(next(batches)) for _ in range(BATCHES))
        return (settled() - before) / images * 1e3


def pixels(manifest, loader, dtype):
    transform = dp.TrainTransform(dtype=dtype)
    with dp.build_loader(
        manifest, LOADERS[loader], transform=transform, batch_size=len(manifest), device="cpu"
    ) as built:
        return to_steps(next(iter(built)).images, transform)


def main(images, rounds="12"):
    manifest = dp.Manifest.scan(images, progress=False)
    warm_page_cache(manifest)
    epochs, arms = repeat_epoch(manifest), list(itertools.product(LOADERS, DTYPES))
    jobs = [
        arm
        for number in range(int(rounds))
        for arm in random.Random(number).sample(arms, len(arms))
    ]
    runs = {arm: [] for arm in arms}
    for arm in track(jobs, " ".join, len(jobs)):
        runs[arm].append(cpu_ms(epochs, *arm))
    figures = {}
    for loader, dtype in arms:
        ratio = paired_ratio(runs[loader, "fp32"], runs[loader, dtype])
        against = (
            {} if dtype == "fp32" else {"against fp32": [ratio.estimate, ratio.low, ratio.high]}
        )
        figures[f"{loader} {dtype}"] = {
            "cpu_ms_per_image": float(np.median(runs[loader, dtype])),
            **against,
        }
    seen = {
        (loader, dtype): pixels(manifest, loader, dtype)
        for loader in LOADERS
        for dtype in ("fp32", "fp16", "bf16")
    }
    of_255 = {f"{loader} {dtype} against fp32": difference(seen[loader, dtype], seen[loader, "fp32"])
              for loader, dtype in seen if dtype != "fp32"}  # fmt: skip
    of_255 |= {f"dali_cpu {dtype} against torch {dtype}": difference(seen["dali_cpu", dtype], seen["torch", dtype])
               for dtype in ("fp32", "fp16", "bf16")}  # fmt: skip
    origin = provenance(manifest.describe(), sys.argv[1:])
    result = {
        "figures": figures,
        "pixels": of_255,
        "rounds": {" ".join(arm): each for arm, each in runs.items()},
        **{key: origin[key] for key in ("versions", "data", "commit")},
    }
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({"figures": figures, "pixels": of_255}, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
