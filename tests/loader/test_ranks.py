"""Promise 3 with real processes: torchrun, gloo, 1 to 3 ranks, killed in mid-epoch, gone on with another number."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dali_pipes as dp

GLOBAL_BATCH, EPOCHS = 6, 3
WORKER = str(Path(__file__).with_name("rank_worker.py"))


def start(ranks, manifest, out, loader, step_s=0.0):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", WORKER]
    command += [str(manifest), str(out), loader, str(GLOBAL_BATCH), str(EPOCHS)]
    environment = {**os.environ, "STEP_S": str(step_s), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    _, told = process.communicate(timeout=200)
    assert process.returncode == 0, told[-3000:]


def delivered(out) -> dict[tuple[int, int], list[int]]:
    """Ids of every global step, (epoch, samples after it) → the ranks' slices in rank order. A repeated step must be the same."""
    steps: dict[tuple[int, int], dict[int, list[int]]] = {}
    for file in sorted(out.glob("rank*.jsonl"), key=lambda file: file.stat().st_mtime_ns):
        rank = int(file.name.split("-")[0].removeprefix("rank"))
        for line in file.read_text().splitlines():
            row = json.loads(line)
            steps.setdefault((row["epoch"], row["samples"]), {})[rank] = row["ids"]
    return {step: [each for rank in sorted(ranks) for each in ranks[rank]] for step, ranks in steps.items()}


@pytest.fixture
def saved(manifest, tmp_path):
    manifest.save(tmp_path / "m.parquet")
    return tmp_path / "m.parquet"


@pytest.mark.parametrize(
    ("before", "after"), [((1, "dali"), (3, "torch")), ((3, "dali"), (2, "dali")), ((2, "torch"), (1, "dali"))]
)
def test_killed_and_resumed_with_another_number_of_ranks(manifest, saved, tmp_path, before, after):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    process = start(*before[:1], saved, first, before[1], step_s=0.1)
    deadline = time.time() + 120
    while not (state := read_state(first)) or state["epoch"] != 1 or state["samples"] < 12:
        assert time.time() < deadline and process.poll() is None, (
            process.stderr.read()[-3000:] if process.poll() is not None else "slow"
        )
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    state = read_state(first)
    second.mkdir()
    (second / "state.json").write_text(json.dumps(state))
    finish(start(after[0], saved, second, after[1]))

    plan = dp.Plan(manifest, dp.TrainTransform(size=16), GLOBAL_BATCH)
    expected = {
        (epoch, (step + 1) * GLOBAL_BATCH): plan.rows(epoch, step).ids.tolist()
        for epoch in range(EPOCHS)
        for step in range(len(plan))
    }
    done = {step: ids for step, ids in delivered(first).items() if step <= (state["epoch"], state["samples"])}
    rest = delivered(second)
    assert not done.keys() & rest.keys()
    assert {**done, **rest} == expected


def read_state(folder):
    try:
        return json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        return None


def test_pixels_do_not_depend_on_the_number_of_ranks(saved, tmp_path):
    sums = []
    for ranks in (1, 2):
        out = tmp_path / str(ranks)
        out.mkdir()
        finish(start(ranks, saved, out, "dali"))
        totals: dict[tuple[int, int], float] = {}
        for file in out.glob("rank*.jsonl"):
            for row in map(json.loads, file.read_text().splitlines()):
                totals[row["epoch"], row["samples"]] = totals.get((row["epoch"], row["samples"]), 0.0) + row["pixels"]
        sums.append(totals)
    assert sums[0].keys() == sums[1].keys() and len(sums[0]) == 18
    assert all(abs(sums[0][step] - sums[1][step]) < 1e-6 for step in sums[0])
