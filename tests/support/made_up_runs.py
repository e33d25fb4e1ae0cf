"""Folders of runs that nobody made, for the pages that are made of them."""

import csv
import json
from pathlib import Path

import numpy as np
from later import later
from made_up import gpu, trial
from PIL import Image

from dali_pipes.measure.figures import result_figures

AGREEMENT = {
    "images": 128,
    "max": 9.0,
    "mean": 0.16,
    "p99": 1.0,
    "same_ids": True,
    "reference": "torch",
    "arms": {"dali": {}},
}


def made_result(rate=1000.0, **work):
    trials = [
        *(trial("torch", number) for number in range(1, 6)),
        *(trial("dali", number, rate=rate) for number in range(1, 6)),
    ]
    found = result_figures(trials, ["torch", "dali"], "torch")
    arms = {
        arm: {"failed": None, "skipped": None} | figures for arm, figures in found["arms"].items()
    }
    work = {
        "batch_size": 64,
        "workload": "loader",
        "model": None,
        "corun": 1,
        "epoch": 5000,
        "transform": {"kind": "TrainTransform", "size": 224},
    } | work
    hardware = {"cpu": "A CPU", "gpu": None}
    data = {"fingerprint": "abc", "images": 125}
    return {
        "schema": later("dali_pipes.tools.benchmark.compare").SCHEMA,
        "baseline": "torch",
        **found,
        "arms": arms,
        "work": work | {"loaders": {}},
        "protocol": {"pairs": 5, "cpus": 2},
        "provenance": {
            "date": "2026-11-21T10:00:00+00:00",
            "hardware": hardware,
            "data": data,
            "overrides": [],
        },
    }


def save_benchmark(folder: Path, **changes) -> None:
    """The files of a comparison with a GPU, an arm that failed, and words that HTML must not take
    for its own.
    """
    result = made_result(2000.0) | {
        "agreement": AGREEMENT,
        "workers": {},
        "not_measured": {"throttled_s": "no cgroup (v2)"},
    }
    result["work"]["loaders"] = {
        "torch": {"kind": "TorchConfig"},
        "dali": {"kind": "DaliConfig"},
    }
    result["arms"]["broken"] = {"failed": "arm broken: </h1><script>$x", "skipped": None}
    result |= changes
    (folder / "trials").mkdir()
    (folder / "samples").mkdir()
    for number in range(1, 6):
        gpus = [[gpu(0.2 * at)] for at in range(4)]
        for made in (
            trial("torch", number),
            trial("dali", number, rate=2000.0, gpus=gpus),
            trial("broken", number),
        ):
            (folder / f"trials/{number}_round_{number}_{made['arm']}.json").write_text(
                json.dumps(made)
            )
    # a control of an arm whose name looks like a trial of a round
    (folder / "trials/9_control_1_torch_round_1_x.json").write_text("not for the page")
    for name in [
        f"{arm}_{number}{kind}"
        for arm in ("torch", "dali")
        for number in range(3)
        for kind in ("", "_difference")
    ]:
        Image.fromarray(np.full((224, 224, 3), 99, np.uint8)).save(folder / f"samples/{name}.png")
    (folder / "result.json").write_text(json.dumps(result))


def save_migration(folder: Path) -> None:
    """What dali-pipes migrate saves beside the files of a comparison."""
    long = "RandomResizedCrop(size=(96, 96), scale=(0.08, 1.0), interpolation=bilinear)"
    steps = [{"text": long, "by": "TrainTransform: size=96, scale=(0.08, 1.0), bilinear"}]
    refused = [{"text": "<lambda> & more", "by": "REFUSED: a function of your own"}]
    common = {"text": "a DataLoader of 200 samples of ImageFolder", "unmeasured": ""}
    loaders = [
        {"number": 1, "place": "my_train.py:6", "trains": True, "steps": steps, "refusal": ""}
        | {"compared": "the largest distance of distributions is 0.082", **common},
        {"number": 2, "place": "my_train.py:9", "trains": False, "steps": refused}
        | {"refusal": "it has a function of your own", "compared": "", **common},
    ]
    diff = f"--- my_train.py\n+++ my_train.py\n-loader = {'a' * 300}\n+loader = dp.from_torch(x)\n"
    migration = {"program": ["my_train.py"], "seconds_before_training": 1.0, "loaders": loaders}
    migration |= {"diff": diff, "notes": ["Lightning: see docs/integrations.md"]}
    (folder / "migration.json").write_text(json.dumps(migration))


def save_training(folder: Path, classes: int = 12) -> None:
    """The files of a run with an evaluation of each epoch, and names as people give them."""
    ends = ("großer Hund", "дом", "a class of a very long name")
    names = [f"{ends[number % 3]} {number}" for number in range(classes)]
    rng = np.random.default_rng(0)
    (folder / "examples").mkdir(parents=True)
    examples = []
    for number, name in enumerate(names):
        pixels = rng.integers(0, 256, (64, 64, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"examples/{number}.webp")
        found = {"truth": name, "found": f"{names[number // 2]} 53%", "right": number == 0}
        examples.append({"picture": f"examples/{number}.webp", "name": f"/a/{name}.jpg"} | found)

    # all images of a class are taken for one, or they scatter
    matrix = [
        {"class": name}
        | {
            other: max(0, 9 - (9, 3)[row % 2] * abs(at - row // 2))
            for at, other in enumerate(names)
        }
        for row, name in enumerate(names)
    ]
    epochs = [
        {"epoch": at, "loss": 2.0 / (at + 1), "images_per_s": 1000.0 + at, "wait_share": 0.3}
        | {"val_loss": 2.2 / (at + 1), "top1": 0.2 * at, "top5": 0.3 * at, "val_images": 60}
        for at in range(3)
    ]
    steps = [
        {"epoch": at // 10, "step": at, "loss": 2.3 / (at + 1), "lr": 0.01 * at} for at in range(30)
    ]
    save_rows(folder / "confusion.csv", matrix)
    save_rows(folder / "classes.csv", [{"class": name, "f1": 0.25} for name in names])
    save_rows(folder / "epochs.csv", epochs)
    save_rows(folder / "steps.csv", steps)

    hardware = {"cpu": "A CPU", "gpu": "A GPU"}
    data = {"images": 1000, "mean_kib": 111.3, "median_size": [375.0, 500.0]}
    summary = {
        "epochs": 3,
        "loss": 0.7,
        "best_top1": 0.4,
        "best_epoch": 1,
        "monitor": "top1",
        "monitor_mode": "max",
        "conclusion": "Training waits for images.",
        "val_images": 60,
        "ranks": 8,
        "device": "cuda",
        "global_batch_size": 2048,
        "seconds": 100.0,
        "images_per_s": 1000.0,
        "wait_share": 0.3,
        "cpu_s_per_1000_images": 2.5,
        "bad_samples": [{"path": f"/a/{'long_' * 30}.jpg", "problem": "truncated"}],
        "provenance": {"hardware": hardware, "data": data, "commit": "0123abcd" * 5},
        "left_out": {"train": [{"number": 3, "kind": "empty file"}], "val": []},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "examples.json").write_text(json.dumps(examples))
    (folder / "config.yaml").write_text(f"data:\n  train: /a/{'long/' * 60}\n")


def save_sweep(folder: Path) -> None:
    """The files of nine runs that differ in three options, one of which has not ended."""
    for number in range(9):
        run = folder / str(number)
        run.mkdir(parents=True)
        options = [f"optimizer.lr={0.01 * 2**number}", f"optimizer.weight_decay={number % 3}"]
        options += [f"model.name=a_network_with_a_long_name_{number % 2}", "data.train=/my/images"]
        (run / "config.yaml").write_text(json.dumps({"overrides": options}))
        values = [{"epoch": at, "loss": 2.5, "top1": 0.1 * at + 0.01 * number} for at in range(3)]
        save_rows(run / "epochs.csv", values)
        if number == 8:
            continue
        summary = {"loss": 2.5, "epochs": 3, "images_per_s": 1234.4, "wait_share": 0.25}
        summary |= {"best_top1": 0.2 + 0.01 * number, "best_epoch": 2, "monitor": "top1"}
        (run / "summary.json").write_text(json.dumps(summary | {"monitor_mode": "max"}))


def save_rows(file: Path, rows: list[dict]) -> None:
    with file.open("w", newline="") as lines:
        table = csv.DictWriter(lines, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
