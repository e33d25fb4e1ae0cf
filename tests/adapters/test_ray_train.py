"""Ray Train, for real: a local Ray, two workers with gloo, one of which dies in mid-epoch."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from ray_run import lazy_loader

import dali_pipes as dp

pytest.importorskip("ray")
RUN = Path(__file__).with_name("ray_run.py")
# 37 images in batches of 2 × 3; the last checkpoint before is that of the 8th batch
STEPS, EPOCHS, EVERY, DIES_AT = 6, 2, 2, 9
OPTIONS = {"num_workers": 2, "use_gpu": False, "batch_size": 3, "size": 32, "threads": 1}
OPTIONS |= {"model": "shufflenet_v2_x0_5", "epochs": EPOCHS, "every": EVERY}


@pytest.fixture
def out():
    """Short, since Ray puts sockets there, whose paths can have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        yield Path(folder)


def run_example(manifest, out, kind):
    manifest.save(out / "m.arrow")
    arguments = [out, DIES_AT, out / "m.arrow", json.dumps(OPTIONS), kind]
    command = [sys.executable, RUN, *arguments]
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
    quiet |= {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2", "RAY_TRAIN_METRICS_ENABLED": "0"}
    options = {"env": os.environ | quiet | {"HOME": str(out)}, "timeout": 550}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def attempts(out):
    """Of each attempt the global batches: ids and the sum of all pixels, by (epoch, step)."""
    files = sorted(out.glob("rank*.jsonl"), key=lambda file: file.stat().st_ctime_ns)
    found = [{}, {}]
    for rank in (0, 1):
        own = [file for file in files if file.name.startswith(f"rank{rank}")]
        for attempt, file in zip(found, own, strict=True):
            for row in map(json.loads, file.read_text().splitlines()):
                ids, pixels = attempt.get((row["epoch"], row["step"]), ([], 0.0))
                ids = sorted(ids + row["ids"])
                attempt[row["epoch"], row["step"]] = ids, pixels + row["pixels"]
    return found


def by_one_process(manifest, kind):
    if kind == "lazy":
        config = {"images": str(manifest), "batch_size": 6, "size": 32}
        loader, _ = lazy_loader(config)
    else:
        config, options = dp.DaliConfig(device="cpu", num_threads=1), {"batch_size": 6}
        options |= {"transform": dp.TrainTransform(size=32)}
        loader = dp.build_loader(dp.Manifest.load(manifest), config, **options)
    found = {}
    with loader:
        for epoch in range(EPOCHS):
            for step, batch in enumerate(loader):
                images, ids = batch if kind == "lazy" else (batch.images, batch.ids)
                # a picture that few are like is made by its program's own functions, bit for bit
                apart = 1e-2 if kind == "lazy" else 1e-6
                pixels = pytest.approx(float(images.double().sum()), abs=apart)
                found[epoch, step] = sorted(ids.tolist()), pixels
    return found


@pytest.mark.slow
# Ray starts a dozen processes, each of which imports PyTorch or pyarrow: 80 s of one core
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["plan", "lazy"])
def test_a_worker_that_dies_in_mid_epoch_changes_nothing(thumbnails, out, kind):
    """Our shards follow Ray's ranks, and its restart goes on from the loader's state in its
    checkpoint.
    """
    run_example(thumbnails, out, kind)
    (before, after), expected = attempts(out), by_one_process(out / "m.arrow", kind)
    steps = [divmod(number, STEPS) for number in range(STEPS * EPOCHS)]
    broken = before.pop(steps[DIES_AT], ([], 0))  # rank 0 may have had its part
    assert set(broken[0]) <= set(expected[steps[DIES_AT]][0])
    assert [*before] == steps[:DIES_AT] and [*after] == steps[DIES_AT // EVERY * EVERY :]
    for attempt in (before, after):
        assert all(each == expected[step] for step, each in attempt.items())
    commands = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    assert not [each for each in commands if str(out) in each]
