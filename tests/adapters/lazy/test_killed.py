"""A lazy loader whose process is killed goes on in others, as if nothing had been."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

PROGRAM = Path(__file__).with_name("killed_run.py")
COUNT, EPOCHS = 60, 2


def start(folder, out, *arguments):
    command = [sys.executable, PROGRAM, folder, out, *map(str, arguments)]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def rows_of(out, rank=0):
    """(epoch, place), index, random number and mean of each sample, in order."""
    rows = []
    for line in (out / f"rank{rank}.jsonl").read_text().splitlines():
        epoch, place, *each = json.loads(line)
        rows.append(((epoch, *place), list(zip(*each, strict=True))))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [("torch", "dali"), ("auto", "auto")])
def test_a_killed_run_goes_on_with_other_workers_ranks_and_backends(tmp_path, first, then):
    rng = np.random.default_rng(0)
    for at in range(COUNT):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
        coarse.resize((80, 60)).save(tmp_path / f"{at:02d}.jpg", quality=95)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    assert start(tmp_path, whole, 0, "torch", 0, 1).wait(300) == 0
    expected = rows_of(whole)
    assert len(expected) == EPOCHS * COUNT // 12

    run = start(tmp_path, killed, 2, first, 0, 1, 0.3)
    state = killed / "state.json"
    place = (0, 0)
    while not (place[0] == 1 and place[1]):  # in the middle of the second epoch
        assert run.poll() is None
        time.sleep(0.05)
        if state.exists():
            reached = json.loads(state.read_text())
            place = reached["epoch"], reached["samples"]
    run.send_signal(signal.SIGKILL)
    run.wait()

    reached = json.loads(state.read_text())
    place = reached["epoch"], reached["samples"]
    found = [row for row in rows_of(killed) if row[0][1:] <= place]
    (killed / "rank0.jsonl").unlink()
    for rank in range(3):
        assert start(tmp_path, killed, (4, 0, 1)[rank], then, rank, 3).wait(300) == 0
    # rank r has every third sample, from the r-th on
    for step in zip(*(rows_of(killed, rank) for rank in range(3)), strict=True):
        places = {where for where, _ in step}
        assert len(places) == 1
        samples = [each for block in zip(*(own for _, own in step), strict=True) for each in block]
        found.append((places.pop(), samples))

    assert 0 < place[1] < COUNT and len(found) == len(expected)
    for (where, samples), (other, own) in zip(found, expected, strict=True):
        assert where == other
        assert [each[:2] for each in samples] == [each[:2] for each in own]
        np.testing.assert_allclose(
            [each[2] for each in samples], [each[2] for each in own], atol=0.01
        )
