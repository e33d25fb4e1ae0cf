"""Promise 3 with real processes: torchrun, gloo, 1 to 3 ranks, killed in mid-epoch, gone on with
another number.
"""

import json
from pathlib import Path

import pytest
from rank_worker import CONFIGS, TRANSFORM
from ranks import finish, kill_after, start_ranks

import dali_pipes as dp

pytestmark = pytest.mark.slow
GLOBAL_BATCH, EPOCHS = 6, 3
WORKER = str(Path(__file__).with_name("rank_worker.py"))


def start(ranks, manifest, out, loader, step_s=0.0):
    arguments = (manifest, out, loader, GLOBAL_BATCH, EPOCHS)
    return start_ranks(WORKER, *arguments, ranks=ranks, STEP_S=str(step_s))


def delivered(out) -> dict[tuple[int, int], tuple[list[int], float]]:
    """Of every global step, (epoch, samples after it), the ids in the order of the ranks and the
    sum of all pixels.
    """
    steps: dict[tuple[int, int], dict[int, dict]] = {}
    for file in sorted(out.glob("rank*.jsonl"), key=lambda file: file.stat().st_mtime_ns):
        rank = int(file.name.split("-")[0].removeprefix("rank"))
        for row in map(json.loads, file.read_text().splitlines()):
            steps.setdefault((row["epoch"], row["samples"]), {})[rank] = row
    return {
        step: (
            [each for rank in sorted(rows) for each in rows[rank]["ids"]],
            sum(row["pixels"] for row in rows.values()),
        )
        for step, rows in steps.items()
    }


def by_one_process(manifest, name):
    """What the ranks must deliver together."""
    found = {}
    with dp.build_loader(
        manifest, CONFIGS[name], transform=TRANSFORM, batch_size=GLOBAL_BATCH
    ) as loader:
        for epoch in range(EPOCHS):
            for step, batch in enumerate(loader):
                found[epoch, (step + 1) * GLOBAL_BATCH] = (
                    batch.ids.tolist(),
                    float(batch.images.double().sum()),
                )
    return found


@pytest.fixture
def saved(manifest, tmp_path):
    manifest.save(tmp_path / "m.parquet")
    return tmp_path / "m.parquet"


@pytest.mark.parametrize(
    ("before", "after", "mixed"),
    [((1, "torch"), (3, "dali"), False), ((3, "dali"), (2, "torch"), True)],
    ids=["plain", "mixture"],
)
def test_killed_and_resumed_with_another_number_of_ranks(
    manifest, saved, tmp_path, before, after, mixed
):
    """The ids, and pixels that do not depend on the number of ranks."""
    if mixed:
        manifest = dp.Manifest.mix({"all": (manifest, 2), "some": (manifest.subset(range(9)), 1)})
        manifest.save(saved)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    process = start(before[0], saved, first, before[1], step_s=0.1)

    def is_in_second_epoch():
        state = read_state(first)
        return state and state["epoch"] == 1 and state["samples"] >= 12

    kill_after(process, is_in_second_epoch)
    state = read_state(first)
    second.mkdir()
    (second / "state.json").write_text(json.dumps(state))
    finish(start(after[0], saved, second, after[1]))

    done = {
        step: one
        for step, one in delivered(first).items()
        if step <= (state["epoch"], state["samples"])
    }
    rest = delivered(second)
    assert not done.keys() & rest.keys()
    for part, name in ((done, before[1]), (rest, after[1])):
        expected = by_one_process(manifest, name)
        assert part.keys() <= expected.keys() and len(done) + len(rest) == len(expected) == (
            21 if mixed else 18
        )
        for step, (ids, total) in part.items():
            assert ids == expected[step][0] and total == pytest.approx(expected[step][1], abs=1e-6)


def read_state(folder):
    try:
        return json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        return None
