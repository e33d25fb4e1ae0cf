import shutil
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import dali_pipes as dp
from dali_pipes.measure import trial
from dali_pipes.measure.arms import DaliNativeConfig, SyntheticConfig
from dali_pipes.measure.trial import run_trial, whole_bursts
from dali_pipes.measure.workload import Workload, to_dict


class InProcess:
    """A controller that says go at once, as often as there are answers to be had but the last."""

    has_spoken = True

    def __init__(self, job, trials=1):
        self.job, self.answers = job, []
        self.stop = threading.Event()
        self._wanted = 1 + 2 * trials

    def send(self, answer):
        self.answers.append(answer)

    def go(self):
        return len(self.answers) < self._wanted


def run(work, config, min_seconds=0.3, min_batches=4, max_warmup_seconds=0.5):
    timing = {
        "min_seconds": min_seconds,
        "min_batches": min_batches,
        "max_warmup_seconds": max_warmup_seconds,
    }
    controller = InProcess({"work": work.to_dict(), "loader": to_dict(config), **timing})
    run_trial(controller)
    first, ready, window = controller.answers
    return first | ready | window


@pytest.mark.slow
def test_the_window_is_as_long_as_asked_for(work):
    by_time = run(work, SyntheticConfig(), min_seconds=0.4)
    assert by_time["end"] - by_time["start"] >= 0.4 and by_time["images"] > 32
    by_count = run(work, dp.DaliConfig(device="cpu"), min_seconds=0, min_batches=7)
    assert by_count["images"] == 7 * 8 == 8 * len(by_count["waits_s"])


@pytest.mark.slow
def test_asked_to_go_once_more_it_is_the_next_trial(work):
    timing = {"min_seconds": 0, "min_batches": 3, "max_warmup_seconds": 0.2}
    controller = InProcess(
        {"work": work.to_dict(), "loader": to_dict(dp.DaliConfig(device="cpu")), **timing}, trials=3
    )
    run_trial(controller)
    assert ["warm_up" in answer for answer in controller.answers[1:]] == [True, False] * 3
    windows = controller.answers[2::2]
    assert [window["images"] for window in windows] == [24] * 3
    assert windows[0]["end"] < windows[1]["start"] and windows[1]["end"] < windows[2]["start"]


def test_before_it_is_suspended_it_gives_back_what_it_does_not_use(work, monkeypatch):
    """Else each of the arms that are suspended keeps the memory of its training step, and all of
    them do not fit into one GPU.
    """
    controller = InProcess(
        {
            "work": work.to_dict(),
            "loader": to_dict(SyntheticConfig()),
            "min_seconds": 0,
            "min_batches": 2,
        }
    )
    controller.job |= {"max_warmup_seconds": 0, "rests": True}
    controller._wanted = 7  # all of the answers below
    monkeypatch.setattr(trial, "release_unused", lambda: controller.answers.append("released"))
    run_trial(controller)
    kinds = [
        each if each == "released" else next(iter(each), "rests") for each in controller.answers
    ]
    assert kinds == ["first_batch_s", "released", "rests", "warm_up", "start", "released", "rests"]


def test_rates_are_counts_over_time(work):
    found = run(work, dp.DaliConfig(device="cpu"))
    assert found["images_per_s"] == pytest.approx(found["images"] / (found["end"] - found["start"]))
    assert found["device"] == "cpu" and found["first_batch_s"] > 0 and found["pinned_mib"] is None
    assert found["cpu_s_per_1000_images"] > 0
    assert sum(found["waits_s"]) <= found["end"] - found["start"]


def slow(monkeypatch, seconds):
    fetch = dp.Loader._next_batch
    monkeypatch.setattr(
        dp.Loader, "_next_batch", lambda *place: (time.sleep(seconds()), fetch(*place))[1]
    )


@pytest.mark.slow
def test_waiting_is_inside_the_clock(work, monkeypatch):
    """A fetch that sleeps 20 ms cannot be faster than 50 batches a second, nor cost CPU for it."""
    slow(monkeypatch, lambda: 0.02)
    found = run(work, SyntheticConfig(), max_warmup_seconds=3)
    assert found["images_per_s"] <= 8 / 0.02
    assert min(found["waits_s"]) >= 0.02
    assert found["cpu_s_per_1000_images"] < 2
    assert found["warm_up"]["steady"] and found["warm_up"]["images"] % 8 == 0


@pytest.mark.slow
def test_a_rate_that_never_settles_is_an_outcome(work, monkeypatch):
    start = time.monotonic()
    slow(monkeypatch, lambda: 0.005 + 0.05 * (time.monotonic() - start))  # slower and slower
    found = run(work, SyntheticConfig(), max_warmup_seconds=2.5)
    assert not found["warm_up"]["steady"] and found["warm_up"]["seconds"] >= 2.5
    assert found["images_per_s"] > 0


def test_epochs_start_where_they_do(work):
    found = run(work, SyntheticConfig(), min_seconds=0, min_batches=10)  # an epoch has 5 batches
    assert (
        len(found["epoch_starts"]) == 2 and found["epoch_starts"][1] - found["epoch_starts"][0] == 5
    )


@pytest.mark.parametrize(
    "config",
    [
        DaliNativeConfig(device="cpu"),
        dp.TorchConfig(num_workers=1),
    ],
    ids=str,
)
def test_every_arm_is_measured_alike(work, config):
    assert run(work, config)["images_per_s"] > 0


@pytest.mark.parametrize("dtype", ["fp32", "uint8"])
def test_training_steps(work, dtype):
    work = replace(
        work,
        workload="train",
        model="shufflenet_v2_x0_5",
        transform=dp.TrainTransform(size=32, dtype=dtype),
    )
    found = run(work, SyntheticConfig(), min_seconds=0, min_batches=2, max_warmup_seconds=0)
    assert found["images"] == 16
    # the step takes the time, not the loader
    assert sum(found["waits_s"]) < 0.5 * (found["end"] - found["start"])


def test_what_networks_are_built_with_is_imported_before_the_clock_starts(work, monkeypatch):
    done = []
    monkeypatch.setattr(trial, "importlib", SimpleNamespace(import_module=done.append))
    monkeypatch.setattr(Workload, "loader", lambda work, config: pytest.fail(str(done)))
    with pytest.raises(pytest.fail.Exception, match="torchvision"):
        run(replace(work, workload="train", model="shufflenet_v2_x0_5"), SyntheticConfig())


def test_what_is_not_finite_is_no_result(work, monkeypatch):
    fetch = dp.Loader._next_batch

    def spoiled(*place):
        batch = fetch(*place)
        return replace(batch, images=torch.full_like(batch.images, float("nan")))

    monkeypatch.setattr(dp.Loader, "_next_batch", spoiled)
    with pytest.raises(ValueError, match="this run is not valid"):
        run(work, SyntheticConfig())


@pytest.mark.parametrize(
    ("config", "batches"),
    [
        (dp.DaliConfig(), 12),
        (dp.TorchConfig(), 12),
        (dp.TorchConfig(num_workers=5), 15),
        (dp.TorchConfig(num_workers=32), 32),
    ],
    ids=str,
)
def test_a_rate_is_taken_overwhole_bursts(config, batches):
    assert whole_bursts(12, config) == batches


def test_an_arm_that_raises_has_no_figure(image_folder, tmp_path):
    shutil.copytree(image_folder, tmp_path / "set")
    manifest = dp.Manifest.scan(tmp_path / "set", progress=False)
    manifest.save(tmp_path / "m.parquet")
    manifest.path(3).write_bytes(b"")
    work = Workload(str(tmp_path / "m.parquet"), dp.TrainTransform(size=32), 8, 0)
    with pytest.raises(dp.BadSampleError, match=manifest.path(3).name):
        run(work, dp.DaliConfig(device="cpu"))
