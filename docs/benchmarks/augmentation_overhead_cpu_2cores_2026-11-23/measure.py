"""Made result.json here: python
docs/benchmarks/augmentation_overhead_cpu_2cores_2026-11-23/measure.py IMAGES

What each policy costs: in every round each loader takes 12 batches of 64 with each policy, in
random order; a ratio is taken within the round, against the same loader with no policy.
"""

import itertools
import json
import random
import sys
import time
from pathlib import Path

import numpy as np

import dali_pipes as dp
from dali_pipes.data.images import repeat_epoch
from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.provenance import provenance
from dali_pipes.system.telemetry import cpu_seconds

LOADERS = {"torch": dp.TorchConfig(num_workers=2), "dali_cpu": dp.DaliConfig(device="cpu")}
POLICIES = {
    "none": [],
    "TrivialAugmentWide": ["TrivialAugmentWide"],
    "RandAugment": ["RandAugment"],
    "AutoAugment": ["AutoAugment"],
    "SimCLR": [
        {
            "name": "ColorJitter",
            "brightness": 0.8,
            "contrast": 0.8,
            "saturation": 0.8,
            "hue": 0.2,
            "p": 0.8,
        },
        {"name": "RandomGrayscale", "p": 0.2},
        {"name": "GaussianBlur", "kernel_size": 23, "p": 0.5},
    ],
    "RandomErasing": ["RandomErasing"],
}
ROUNDS, WARM, BATCHES, BATCH_SIZE = 6, 4, 12, 64


def block(manifest, loader, policy):
    """(images a second, CPU milliseconds an image)"""
    transform = dp.TrainTransform(augment=POLICIES[policy])
    with dp.build_loader(
        manifest, LOADERS[loader], transform=transform, batch_size=BATCH_SIZE, device="cpu"
    ) as built:
        batches = itertools.islice(built, WARM + BATCHES)
        for _ in range(WARM):
            next(batches)
        start, cpu = time.perf_counter(), cpu_seconds()
        images = sum(len(batch) for batch in batches)
        return images / (time.perf_counter() - start), (cpu_seconds() - cpu) / images * 1000


def main(images):
    manifest = repeat_epoch(dp.Manifest.scan(images, progress=False))
    arms = list(itertools.product(LOADERS, POLICIES))
    rounds = []
    for number in range(ROUNDS):
        order = random.Random(number).sample(arms, len(arms))
        rounds.append({arm: block(manifest, *arm) for arm in order})
        print(f"round {number + 1} of {ROUNDS}", flush=True)
    figures = {}
    for loader, policy in arms:
        blocks, base = ([each[(loader, name)] for each in rounds] for name in (policy, "none"))
        rate = paired_ratio([each[0] for each in base], [each[0] for each in blocks])
        figures[f"{loader} {policy}"] = {
            "images_per_s": float(np.median([each[0] for each in blocks])),
            "cpu_ms_per_image": float(np.median([each[1] for each in blocks])),
            "images_per_s against none": [rate.estimate, rate.low, rate.high],
            "added cpu_ms_per_image": float(
                np.median([mine[1] - none[1] for mine, none in zip(blocks, base, strict=True)])
            ),
        }
    origin = provenance(manifest.describe(), [])
    result = {"figures": figures, **{key: origin[key] for key in ("versions", "data", "commit")}}
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
    for name, each in figures.items():
        ratio, low, high = each["images_per_s against none"]
        print(f"{name}: {each['images_per_s']:.0f} images/s, {ratio:.2f} [{low:.2f}, {high:.2f}]; "
              f"{each['cpu_ms_per_image']:.2f} CPU-ms an image, " f"{each['added cpu_ms_per_image']:+.2f}")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
