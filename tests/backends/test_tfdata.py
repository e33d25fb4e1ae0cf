import os
import subprocess
import sys
import time

import psutil
import pytest
import torch
from PIL import Image

import dali_pipes as dp

CONFIG = dp.TfDataConfig(num_threads=2)
TRANSFORM = dp.TrainTransform(size=32)

FIRST_BATCH = """
import sys
import dali_pipes as dp

manifest = dp.Manifest.load(sys.argv[1])
options = {"transform": dp.TrainTransform(), "batch_size": 4}
with dp.build_loader(manifest, dp.TfDataConfig(), **options) as loader:
    next(iter(loader))
"""


@pytest.fixture(scope="module")
def manifest(thumbnails):
    return thumbnails


def build(manifest, config=CONFIG, batch_size=8, **options):
    return dp.build_loader(manifest, config, transform=TRANSFORM, batch_size=batch_size, **options)


def threads() -> int:
    return psutil.Process().num_threads()


@pytest.fixture
def started(manifest):
    """What TensorFlow starts once and keeps."""
    with build(manifest) as loader:
        next(iter(loader))


@pytest.fixture
def formats(tmp_path):
    """12 images in each of the formats but JPEG, under names that are not UTF-8."""
    latin1 = os.fsdecode(b"\xe9")
    for number, form in enumerate(["PNG", "WEBP", "BMP", "TIFF", "PPM"] * 12):
        (tmp_path / f"{number % 4}").mkdir(exist_ok=True)
        Image.new("RGB", (40, 30), (number, 0, 0)).save(
            tmp_path / f"{number % 4}/{number:02d}{latin1}.{form.lower()}", form
        )
    return dp.Manifest.scan(tmp_path, progress=False)


def test_without_tensorflow_it_says_what_to_install(manifest, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "dali_pipes.backends.tfdata.backend", raising=False)
    missing = (
        r"^the backend tfdata needs a package that is missing \(.*pip install "
        r"'dali_pipes\[tf\]', or use another loader$"
    )
    with pytest.raises(dp.ConfigError, match=missing):
        build(manifest)
    with build(manifest, dp.TorchConfig(num_workers=0)) as loader:
        assert len(next(iter(loader))) == 8


@pytest.mark.slow
def test_tensorflow_prints_nothing(manifest, tmp_path):
    manifest.save(tmp_path / "m.parquet")
    command = [sys.executable, "-c", FIRST_BATCH, str(tmp_path / "m.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_orientation_is_refused(manifest):
    with pytest.raises(
        dp.ConfigError,
        match=(
            r"TfDataConfig takes pixels as stored; TrainTransform\(exif='apply'\) needs DaliConfig "
            "or TorchConfig"
        ),
    ):
        dp.build_loader(manifest, CONFIG, transform=dp.TrainTransform(exif="apply"), batch_size=8)


@pytest.mark.parametrize("config", [dp.TfDataConfig(num_threads=1), CONFIG])
def test_all_formats_with_one_thread_too(formats, config):
    with build(formats, config, 7, last_batch="partial", shuffle=False) as loader:
        batches = list(loader)
    assert torch.cat([batch.ids for batch in batches]).tolist() == list(range(60))


def test_close_ends_the_threads_in_mid_epoch(manifest, started):
    before = threads()
    with build(manifest) as loader:
        batches = iter(loader)
        next(batches)
        assert threads() > before
    assert threads() <= before


def test_an_error_that_is_kept_keeps_no_threads(scanned, started):
    scanned.path(20).unlink()
    before = threads()
    with build(scanned, shuffle=False) as loader, pytest.raises(dp.BadSampleError) as kept:
        list(loader)
    until = time.monotonic() + 60  # TensorFlow's end a moment after their iterator
    while threads() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threads() <= before
    assert kept.value.bad_samples[0][0] == 20


@pytest.mark.slow
def test_a_new_stream_ends_the_one_before_it(manifest):
    with build(manifest) as loader:
        next(iter(loader))
        running = threads()
        planned, streams = [loader.plan.batch(0, step) for step in range(4)], []
        for _ in range(5):
            streams.append(loader._work.backend_at(0).stream(iter(planned)))
            assert next(streams[-1])[1].ids.tolist() == planned[0].ids.tolist()
        assert threads() <= running


@pytest.mark.release
@pytest.mark.slow
def test_abandoned_epochs_leave_nothing_behind(manifest):
    """Threads and memory; each of 40 new streams builds a data set of its own."""
    with build(manifest) as loader:
        for number in range(50):
            if number == 10:
                before = threads(), psutil.Process().memory_info().rss
            assert next(iter(loader)).ids.tolist() == loader.plan.batch(number, 0).ids.tolist()
        assert threads() <= before[0]
        assert psutil.Process().memory_info().rss - before[1] < 30 * 2**20


@pytest.mark.slow
def test_an_error_in_the_plan_comes_out_after_the_batches_before_it(manifest, monkeypatch):
    with build(manifest) as loader:
        walk = type(loader.plan).iter_from

        def failing(plan, *start):
            for planned in walk(plan, *start):
                if planned.step == 2:
                    raise ZeroDivisionError("in the plan")
                yield planned

        monkeypatch.setattr(type(loader.plan), "iter_from", failing)
        batches = iter(loader)
        assert [next(batches).ids.tolist() for _ in range(2)] == [
            loader.plan.batch(0, step).ids.tolist() for step in (0, 1)
        ]
        with pytest.raises(ZeroDivisionError, match="in the plan"):
            next(batches)


def test_a_passing_error_in_the_plan_is_reported_and_blames_no_file(manifest):
    """Only what TensorFlow says of it is known: the plan, asked again, is well."""
    with build(manifest) as loader:
        failing = iter([loader.plan.batch(0, 0)])

        def planned():
            yield next(failing)
            raise ZeroDivisionError("in the plan")

        stream = loader._work.backend_at(0).stream(planned())
        assert len(next(stream)[1]) == 8
        with pytest.raises(RuntimeError, match=r"ZeroDivisionError: in the plan"):
            next(stream)


def test_a_closed_backend_says_so(manifest):
    with build(manifest) as loader:
        backend, planned = loader._work.backend_at(0), loader.plan.batch(0, 0)
    backend.close()
    with pytest.raises(RuntimeError, match="closed"):
        backend.stream(iter([planned]))
