"""A run over random items that a test kills in mid-epoch and starts again on another backend:
`run_epochs` is what the program does, and `compare_killed` the test.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from ranks import finish, kill_after, start_ranks

import dali_pipes as dp

CONFIGS = {
    "dali": dp.DaliConfig(device="cpu", num_threads=1),
    "torch": dp.TorchConfig(num_workers=1),
}
EPOCHS = 3


def run_epochs(loader, out, items=None):
    """Writes down what the loader of pictures and numbers yields, and saves its state after every
    step.

    Args:
        items: the loader that knows the epoch; None: the same.
    """
    state, items = out / "state.json", items or loader
    with loader, (out / f"{os.getpid()}.jsonl").open("w") as log:
        if state.exists():
            loader.load_state_dict(json.loads(state.read_text()))
        while items.epoch < EPOCHS:
            epoch = items.epoch
            for pictures, chosen in loader:
                after = loader.state_dict()
                mean = float(torch.stack(list(pictures)).float().mean())
                row = {"epoch": epoch, "next": [after["epoch"], after["samples"]]}
                row |= {"chosen": chosen.tolist(), "mean": mean}
                log.write(json.dumps(row) + "\n")
                log.flush()
                (out / "state.new").write_text(json.dumps(after))
                (out / "state.new").replace(state)
                time.sleep(float(os.environ.get("STEP_S", "0")))


def compare_killed(program: Path, folder: Path, tmp_path: Path, white: float):
    """A run that is killed with `torch` and goes on with `dali` writes down what a whole one does.

    Args:
        program: gets `folder`, a folder for its output, and the name of a loader.
        white: the largest value of a pixel.
    """
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()

    def start(out, name, **environment):
        # the program finds this module
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        return start_ranks(program, folder, out, name, **environment)

    def rows(out):
        files = sorted(out.glob("*.jsonl"), key=lambda file: file.stat().st_mtime_ns)
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def reached():
        state = killed / "state.json"
        return state.exists() and json.loads(state.read_text())["epoch"] == 1

    finish(start(whole, "torch"))
    kill_after(start(killed, "torch", STEP_S="0.1"), reached)
    state = json.loads((killed / "state.json").read_text())
    saved = [row for row in rows(killed) if row["next"] <= [state["epoch"], state["samples"]]]
    (killed / "first").mkdir()
    for file in killed.glob("*.jsonl"):
        file.rename(killed / "first" / file.name)
    finish(start(killed, "dali"))

    found, expected = saved + rows(killed), rows(whole)
    assert len(expected) == 9
    assert [(row["next"], row["chosen"]) for row in found] == [
        (row["next"], row["chosen"]) for row in expected
    ]
    for row, other in zip(found, expected, strict=True):
        assert abs(row["mean"] - other["mean"]) < 0.1 * white / 255
