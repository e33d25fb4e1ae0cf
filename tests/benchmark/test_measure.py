import shutil
import time

import pytest

import dali_pipes as dp
from dali_pipes.benchmark.measure import measure
from dali_pipes.benchmark.work import Work, plain
from dali_pipes.config import DaliNativeConfig


@pytest.fixture
def work(manifest, tmp_path):
    manifest.save(tmp_path / "m.parquet")
    return Work(str(tmp_path / "m.parquet"), dp.TrainTransform(size=32), 8, 0)


def timed(work, config, seconds=0.3, min_batches=4):
    return measure(
        {"work": work.plain(), "loader": plain(config), "seconds": seconds, "min_batches": min_batches, "warmup_batches": 2}
    )


def test_the_window_is_as_long_as_asked_for(work):
    by_time = timed(work, dp.SyntheticConfig(), seconds=0.4)
    assert by_time["seconds"] >= 0.4 and by_time["images"] > 32
    by_count = timed(work, dp.DaliConfig(device="cpu"), seconds=0, min_batches=7)
    assert by_count["images"] == 7 * 8


def test_rates_are_counts_over_time(work):
    found = timed(work, dp.DaliConfig(device="cpu"))
    assert found["images_per_s"] == pytest.approx(found["images"] / found["seconds"])
    assert found["device"] == "cpu" and found["first_batch_s"] > 0


def test_waiting_is_inside_the_clock(work, monkeypatch):
    """A fetch that sleeps 20 ms cannot be faster than 50 batches a second, nor cost CPU for it."""
    fetch = dp.Loader._next_batch

    def slow(loader):
        time.sleep(0.02)
        return fetch(loader)

    monkeypatch.setattr(dp.Loader, "_next_batch", slow)
    found = timed(work, dp.SyntheticConfig())
    assert found["images_per_s"] <= 8 / 0.02
    assert found["wait_ms"]["p50"] >= 20
    assert found["cpu_ms_per_image"] < 2


def test_dali_native_is_measured_alike(work):
    assert timed(work, DaliNativeConfig(device="cpu"))["images_per_s"] > 0


def test_an_arm_that_raises_has_no_figure(image_folder, tmp_path):
    shutil.copytree(image_folder, tmp_path / "set")
    manifest = dp.Manifest.scan(tmp_path / "set", progress=False)
    manifest.save(tmp_path / "m.parquet")
    manifest.path(3).write_bytes(b"")
    work = Work(str(tmp_path / "m.parquet"), dp.TrainTransform(size=32), 8, 0)
    with pytest.raises(dp.BadSampleError, match=manifest.path(3).name):
        timed(work, dp.DaliConfig(device="cpu"))
