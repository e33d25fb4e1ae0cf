"""A sweep's table compares the runs that have ended, and names those that have not."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dali_pipes.training.log.sweep import write_sweep


def run(sweep, name, overrides, values=None, *, monitor="top1", mode="max", ended=True):
    """The files of a run: `values` are what its evaluations measured."""
    folder = sweep / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps({"overrides": overrides, "epochs": 3}))
    values = values or []
    lines = [f"epoch,loss,{monitor}", *(f"{at},2.5,{each}" for at, each in enumerate(values))]
    (folder / "epochs.csv").write_text("\n".join(lines) + "\n")
    if not ended:
        return
    summary = {"loss": 2.5 + len(name), "epochs": 3, "images_per_s": 1234.4, "wait_share": 0.254}
    if values:
        best = (max if mode == "max" else min)(values)
        summary |= {f"best_{monitor}": best, "best_epoch": values.index(best)}
        summary |= {"monitor": monitor, "monitor_mode": mode}
    (folder / "summary.json").write_text(json.dumps(summary))


def table(sweep):
    with (sweep / "sweep.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_best_is_first_and_named(tmp_path):
    shared = ["epochs=3", "loader=dali_cpu"]
    run(tmp_path, "0", [*shared, "optimizer.lr=0.01"], [0.1, 0.2, 0.3])
    run(tmp_path, "1", [*shared, "optimizer.lr=0.1"], [0.2, 0.55, 0.5])
    run(tmp_path, "2", [*shared, "optimizer.lr=1.0"], [0.1, 0.1, 0.1])
    run(tmp_path, "10", [*shared, "optimizer.lr=10"], [0.1], ended=False)
    said = write_sweep(tmp_path)
    assert said.startswith("optimizer.lr=0.1: top-1 55.0%, the best of 4 runs")
    assert str(tmp_path / "sweep.csv") in said
    rows = table(tmp_path)
    assert [row["run"] for row in rows] == ["1", "0", "2", "10"]
    assert [*rows[0]][:3] == ["run", "best top1", "optimizer.lr"]
    assert rows[0] == {
        "run": "1",
        "optimizer.lr": "0.1",
        "best top1": "0.55",
        "in epoch": "2 of 3",
        "loss": "3.5",
        "images/s": "1,234",
        "waiting": "25%",
    }
    assert rows[3]["in epoch"] == "not ended, 1 so far" and rows[3]["best top1"] == ""


def test_what_is_better_is_what_the_runs_say(tmp_path):
    run(tmp_path, "0", ["seed=0"], [3.0, 1.0], monitor="mae", mode="min")
    run(tmp_path, "1", ["seed=1"], [2.0, 2.0], monitor="mae", mode="min")
    assert write_sweep(tmp_path).startswith("seed=0: mae 1, the best of 2")


def test_runs_that_monitor_something_else_have_the_loss_in_common(tmp_path):
    run(tmp_path, "0", ["data=a"], [0.5, 0.6])
    run(tmp_path, "1", ["data=b"], [3.0, 1.0], monitor="mae", mode="min")
    assert "best loss" in table_of(tmp_path)
    without = tmp_path / "without"
    run(without, "0", ["seed=0"])
    run(without, "11", ["seed=1"])
    assert write_sweep(without).startswith("seed=0: loss 3.5, the best of 2")


def table_of(sweep):
    write_sweep(sweep)
    return (sweep / "sweep.csv").read_text()


def test_nan_is_not_the_best(tmp_path):
    run(tmp_path, "0", ["seed=0"], [float("nan"), float("nan")])
    run(tmp_path, "1", ["seed=1"], [0.1, 0.2])
    run(tmp_path, "2", ["seed=2"], [0.3, 0.1])
    write_sweep(tmp_path)
    assert [row["run"] for row in table(tmp_path)] == ["2", "1", "0"]


def test_no_run_has_ended(tmp_path):
    run(tmp_path, "0", ["seed=0"], ended=False)
    assert write_sweep(tmp_path).startswith("No run has ended")


@pytest.mark.slow
def test_runs_that_end_at_the_same_time_are_all_in_the_table(tmp_path):
    """Each writes the table after its own summary, as the jobs of a cluster do."""
    program = "import sys; from pathlib import Path; import test_sweep_table as test\n"
    program += "from dali_pipes.training.log.sweep import write_sweep\n"
    program += "sweep, number = Path(sys.argv[1]), sys.argv[2]; input()\n"
    program += "test.run(sweep, number, [f'seed={number}'], [0.5]); write_sweep(sweep)\n"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), str(number)],
            stdin=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths},
        )
        for number in range(3)
    ]
    for process in processes:
        process.stdin.write(b"\n")
        process.stdin.close()
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(table(tmp_path)) == 3
    assert all(row["best top1"] for row in table(tmp_path))


def test_an_option_that_was_taken_away_is_an_option(tmp_path):
    run(tmp_path, "0", ["epochs=3", "~logger"], [0.5])
    run(tmp_path, "1", ["epochs=3"], [0.25])
    assert write_sweep(tmp_path).startswith("~logger: top-1 50.0%")


def test_a_run_that_goes_on_from_another_folder_is_a_run(tmp_path):
    """It has no config.yaml."""
    for number in range(2):
        run(tmp_path, str(number), [f"optimizer.lr={number + 1}"], [0.5 + 0.1 * number])
    (tmp_path / "1/config.yaml").rename(tmp_path / "1/config_from_step_9.yaml")
    assert write_sweep(tmp_path).startswith("optimizer.lr=2: top-1 60.0%, the best of 2 runs")
    assert [row["run"] for row in table(tmp_path)] == ["1", "0"]


def test_a_summary_without_a_run_does_not_keep_the_others_waiting(tmp_path):
    run(tmp_path, "0", ["seed=0"], [0.5])
    run(tmp_path, "1", ["seed=1"], [0.4])
    (tmp_path / "1/config.yaml").unlink()
    assert "the best of 1 run." in write_sweep(tmp_path)
