"""Made rare_classes.json and rare_classes.md here: python
docs/benchmarks/sampling_cpu_2026-11-23/rare_classes.py FOLDER

Top-1 of frequent and of rare classes. Of the demo set's ten classes every second one has 100
training images, the others 5; of all there are 40 validation images. The same network, recipe and
number of steps with `uniform` and with `balanced`, two seeds each. FOLDER takes the images and the
runs; the same command goes on.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.dataset

import dali_pipes as dp
from dali_pipes.data.demo import make_demo_set
from dali_pipes.system.provenance import provenance

HERE, FREQUENT, RARE, EPOCHS, SEEDS = Path(__file__).parent, 100, 5, 24, (0, 1)
SAMPLINGS = {
    "uniform": ["sampling=uniform"],
    "balanced": ["sampling=balanced"],
}


def main(folder):
    demo = make_demo_set(folder / "images", train=1000, val=400)
    train, val = dp.Manifest.scan(demo / "train"), dp.Manifest.scan(demo / "val")
    ids = [
        np.flatnonzero(train.labels == each)[: RARE if each % 2 else FREQUENT] for each in range(10)
    ]
    train.subset(np.sort(np.concatenate(ids))).save(folder / "train.arrow")
    val.save(folder / "val.arrow")
    data = [f"data.train={folder / 'train.arrow'}", f"data.val={folder / 'val.arrow'}"]
    found = {}
    for name, words in SAMPLINGS.items():
        for seed in SEEDS:
            run = folder / f"{name}_{seed}"
            recipe = [
                "experiment=demo_resnet18",
                "loader=dali_cpu",
                f"epochs={EPOCHS}",
                f"seed={seed}",
            ]
            subprocess.run(
                [
                    "dali-pipes",
                    "train",
                    *recipe,
                    "resume=auto",
                    f"out={run}",
                    *words,
                    "data=folder",
                    *data,
                ],
                check=True,
            )
            eval_at = ["transform.size=64", "transform.resize=73", "loader=dali_cpu"]
            into = [
                f"checkpoint={run / 'last.pt'}",
                "output=topk",
                "k=1",
                f"out={run / 'predicted'}",
            ]
            subprocess.run(["dali-pipes", "predict", data[1], *eval_at, *into], check=True)
            table = (
                pyarrow.dataset.dataset(run / "predicted", format="parquet")
                .to_table()
                .sort_by("id")
            )
            right = np.array(table["classes"].to_pylist())[:, 0] == val.labels
            rare = val.labels % 2 == 1
            found.setdefault(name, []).append(
                [float(right[~rare].mean()), float(right[rare].mean())]
            )
    result = {
        key: value
        for key, value in provenance({}, []).items()
        if key in ("date", "hardware", "commit")
    }
    result["top-1 of the frequent and of the rare classes, by seed"] = found
    (HERE / "rare_classes.json").write_text(json.dumps(result, indent=1) + "\n")
    lines = ["| sampling | top-1 of the frequent classes | of the rare ones |", "|---|---|---|"]
    for name, seeds in found.items():
        lines.append(
            f"| {name} | "
            + " | ".join(", ".join(f"{each[kind]:.0%}" for each in seeds) for kind in (0, 1))
            + " |"
        )
    (HERE / "rare_classes.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
