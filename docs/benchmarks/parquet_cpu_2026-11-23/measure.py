"""Made result.json here: python docs/benchmarks/parquet_cpu_2026-11-23/measure.py FOLDER PARQUET
[--rounds 6]

`dali_cpu` on the same images in a folder and in Hugging Face's Parquet, in epochs of 5,000, after
some batches that have unpacked the row groups: RandomResizedCrop 224, flip, batches of 64, float32.
Each trial is a fresh process, in random order within a round; the folder runs twice in each, as the
control.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import dali_pipes as dp
from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.progress import track
from dali_pipes.system.provenance import provenance

HERE, EPOCH, LEAST_S = Path(__file__).parent, 5_000, 4
ARMS = {"folder": 1, "folder again": 1, "parquet": 2}  # and the argument that each takes


def trial(source):
    manifest = dp.Manifest.open(source, progress=False)
    made = manifest.subset(np.resize(np.arange(len(manifest)), EPOCH))
    with dp.build_loader(
        made,
        dp.DaliConfig(device="cpu"),
        transform=dp.TrainTransform(),
        batch_size=64,
        device="cpu",
    ) as loader:
        for batch, _ in zip(loader, range(10), strict=False):
            del batch
        start, cpu, images = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - start < LEAST_S:
            for batch in loader:
                images += len(batch)
        seconds = time.perf_counter() - start
        return {
            "images_per_s": images / seconds,
            "cpu_ms_per_image": (time.process_time() - cpu) / images * 1000,
        }


def main():
    if sys.argv[1] == "--child":
        print(json.dumps(trial(sys.argv[2])), flush=True)
        return
    rounds, trials = int(sys.argv[4]) if len(sys.argv) > 4 else 6, {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"DALI_PIPES_CACHE": cache}
        order = [
            arm
            for number in range(rounds)
            for arm in random.Random(number).sample(list(ARMS), len(ARMS))
        ]
        for arm in track(order, "trials", len(order)):
            command = [sys.executable, __file__, "--child", sys.argv[ARMS[arm]]]
            made = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            trials[arm].append(json.loads(made.stdout.splitlines()[-1]))
    ratios = {
        f"{arm}, {figure}": paired_ratio(
            [each[figure] for each in trials["folder"]], [each[figure] for each in trials[arm]]
        ).to_dict()
        for arm in ("folder again", "parquet")
        for figure in ("images_per_s", "cpu_ms_per_image")
    }
    facts = provenance(dp.Manifest.open(sys.argv[1], progress=False).describe(), [])
    (HERE / "result.json").write_text(
        json.dumps({"against folder": ratios, "trials": trials, "provenance": facts}, indent=1)
        + "\n"
    )
    print(json.dumps(ratios, indent=1))


if __name__ == "__main__":
    main()
