r"""CPU time of DALI's threads for each image, by their names, with the graph for a GPU.

    PYTHONPATH=CHECKOUT python -m tests.simulated_gpu python \
        docs/benchmarks/executor_simulated_gpu_2026-11-27/measure.py OUT.json

On the simulated GPU, where no kernel runs and the host code is DALI's own. "[DALI] Executor" is the
thread that prepares every operator for every image. It also calls the simulated JPEG engine, which
decodes by libjpeg, so the images are as small as an icon.
"""

import json
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

import dali_pipes as dp

BATCH, BATCHES, ROUNDS = 256, 12, 5


def cpu_seconds() -> Counter[str]:
    """Of the threads of this process, by name without numbers."""
    found: Counter[str] = Counter()
    for thread in os.listdir("/proc/self/task"):
        of_thread = Path("/proc/self/task", thread)
        kind = re.sub(r"\d+", "", (of_thread / "comm").read_text().strip())
        found[kind] += int((of_thread / "schedstat").read_text().split()[0]) / 1e9
    return found


def icons(folder: str) -> dp.Manifest:
    """Sixty-four JPEGs, one in eight of them gray."""
    rng = np.random.default_rng(0)
    Path(folder, "a").mkdir()
    for number in range(64):
        picture = Image.fromarray(rng.integers(0, 256, (16, 24, 3), np.uint8))
        picture.convert("RGB" if number % 8 else "L").save(f"{folder}/a/{number:02d}.jpg")
    return dp.Manifest.scan(folder, progress=False)


def main(out: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        measure(icons(folder), out)


def measure(images: dp.Manifest, out: str) -> None:
    epoch = images.subset(np.arange(BATCH * (BATCHES * ROUNDS + 4)) % len(images))
    transform = dp.TrainTransform(dtype="fp16", memory_format="channels_last")
    config = dp.DaliConfig(device="gpu", num_threads=2, decode="whole")
    rounds = []
    with dp.build_loader(epoch, config, transform=transform, batch_size=BATCH) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        for _ in range(ROUNDS):
            before = cpu_seconds()
            for _ in range(BATCHES):
                next(batches)
            used = cpu_seconds() - before
            rounds.append({name: 1e6 * each / BATCH / BATCHES for name, each in used.items()})
    names = {name for each in rounds for name, spent in each.items() if spent > 0.5}
    found = {name: sorted(round(each[name], 1) for each in rounds) for name in sorted(names)}
    print(json.dumps(found, indent=1))
    with open(out, "w") as file:
        json.dump({"cpu_us_per_image": found}, file, indent=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
