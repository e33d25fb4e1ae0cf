"""Made result.json in this folder: python docs/benchmarks/prepare_256_2026-11-21/measure.py IMAGES

What resize=256 quality=90 does to bytes and pixels, and to the windows that training plans.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from dali_pipes.plan.philox import Draws

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.tools.preparation.config import PrepareConfig
from dali_pipes.tools.preparation.run import prepare

EPOCHS = 200


def windows(before, after, transform):
    """How far the windows of the prepared images lie from those of the source, in pixels of the
    prepared ones.
    """
    off = []
    for epoch in range(EPOCHS):
        draws = Draws(0, epoch, np.arange(len(before)))
        scale = np.tile(after.sizes / before.sizes, 2)
        one, other = (transform.geometry(each.sizes, draws).region for each in (before, after))
        off.append(np.abs(one * scale - other).max(axis=1))
    found = np.concatenate(off)
    return {
        "windows": len(found),
        "p50": np.median(found),
        "p99": np.percentile(found, 99),
        "share_above_2": np.mean(found > 2),
    }


def main(images):
    with tempfile.TemporaryDirectory() as temporary:
        out, transform = Path(temporary, "out"), dp.TrainTransform()
        transforms = {
            "transform": transform,
            "eval_transform": dp.EvalTransform(),
            "loader": dp.TorchConfig(),
        }
        prepare(
            PrepareConfig(
                data=DataConfig(train=images),
                out=str(out),
                resize=256,
                quality=90,
                agreement_images=1000,
                **transforms,
            )
        )
        result = json.loads((out / "prepared.json").read_text())["splits"]["train"]["result"]
        before, after = (
            dp.Manifest.scan(folder, progress=False) for folder in (images, out / "train")
        )
        result["windows"] = windows(before, after, transform)
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
