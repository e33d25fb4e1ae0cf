"""Folders of comparisons that nobody made, for the pages that are made of them."""

import json
from pathlib import Path

import numpy as np
from later import later
from made_up import trial
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
        "manifest": "manifest.parquet",
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
        "schema": later("dali_pipes.tools.benchmark.sweep").SCHEMA,
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
    """The files of a comparison with an arm that failed, and words that HTML must not take for its
    own.
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
        for made in (
            trial("torch", number),
            trial("dali", number, rate=2000.0),
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
