import shutil

import pytest
from make_shards import tar_shards

import dali_pipes as dp
from dali_pipes.data.images import warm_page_cache
from dali_pipes.data.reader import Extent
from dali_pipes.system.page_cache import evict, resident_share
from dali_pipes.tools.doctor import machine
from dali_pipes.tools.doctor.machine import (
    files,
    not_asked,
    page_cache,
    read_speed,
    sample,
    storage_speed,
)


@pytest.fixture
def images(image_folder, tmp_path) -> dp.Manifest:
    """A copy of its own, so that nobody else reads it."""
    shutil.copytree(image_folder, tmp_path / "set")
    return dp.Manifest.scan(tmp_path / "set", progress=False)


def test_data_that_fits_and_how_much_of_it_is_in_memory(images, monkeypatch):
    paths = files(sample(images, 1000))
    for path in paths:
        path.read_bytes()
    finding = page_cache(images)
    assert (
        finding.status == "ok"
        and "in 37 images" in finding.found
        and "100% of it is there now" in finding.found
    )
    evict(paths)
    if resident_share(paths) == 0:
        assert "0% of it is there now" in page_cache(images).found
    monkeypatch.setattr(machine, "resident_share", lambda _: None)
    assert "unknown (another owner's files)" in page_cache(images).found


def test_data_that_does_not_fit(images, monkeypatch):
    monkeypatch.setattr(machine, "memory_left", lambda: 100_000)
    finding = page_cache(images)
    assert (
        finding.status == "warning"
        and finding.found.startswith("does not fit into memory")
        and "97.7 KiB" in finding.found
    )
    assert "every epoch reads from storage" in finding.remedy


def test_the_speed_is_of_files_that_were_not_in_memory(images):
    paths = files(sample(images, 1000))
    evict(paths)
    if resident_share(paths) != 0:
        pytest.skip("this file system keeps its pages (tmpfs)")
    for path in paths:
        path.read_bytes()
    finding = storage_speed(images, 0)
    assert (
        finding.status == "ok"
        and "images/s with 1 thread;" in finding.found
        and "images/s with 8 threads" in finding.found
    )
    finding = storage_speed(images, 1e9)
    assert (
        finding.status == "warning"
        and "less than images_per_s=1e+09" in finding.found
        and "training waits" in finding.remedy
    )


@pytest.mark.parametrize(
    ("share", "why"), [(1.0, "100% of them stayed in memory"), (None, "another owner's files")]
)
def test_files_that_stay_in_memory_have_no_speed(images, monkeypatch, share, why):
    monkeypatch.setattr(machine, "resident_share", lambda _: share)
    finding = storage_speed(images, 0)
    assert (
        finding.status == "warning"
        and finding.found.startswith("unknown: ")
        and why in finding.found
    )
    assert "MB/s" not in finding.found


def test_too_few_images_have_no_speed(images, monkeypatch):
    finding = storage_speed(images.subset(range(3)), 0)
    assert finding.status == "warning" and finding.found == "unknown: 3 images are too few"


def test_images_in_shards(images, tmp_path):
    shards = dp.Manifest.open(tar_shards(images, tmp_path / "shards"), progress=False)
    evict(files(sample(shards, 1000)))
    if resident_share(files(sample(shards, 1000))) != 0:
        pytest.skip("this file system keeps its pages (tmpfs)")
    assert "0% of it is there now" in page_cache(shards).found
    assert storage_speed(shards, 0).status == "ok"
    warm_page_cache(shards)
    assert "100% of it is there now" in page_cache(shards).found


@pytest.mark.parametrize("threads", [1, 8])
def test_reading_stops_in_time_and_counts_what_was_read(tmp_path, monkeypatch, threads):
    paths = [tmp_path / str(number) for number in range(40)]
    for path in paths:
        path.write_bytes(bytes(50_000))
    extents = [Extent(str(path)) for path in paths]
    megabytes, rate = read_speed(extents, threads)
    assert megabytes == pytest.approx(rate * 0.05)
    assert read_speed(extents, threads, seconds=0) == (0, 0)


def test_the_sample_is_spread_the_same_every_time_and_without_doubles(images):
    some = sample(images, 10)
    assert (
        len(set(some)) == 10
        and some == sample(images, 10)
        and len({path.parent for path in files(some)}) > 2
    )
    twice = images.subset([0, 1, 2, 0, 1, 2])
    assert len(sample(twice, 6)) == 3


def test_without_data_the_line_says_how_to_ask():
    assert not_asked().status == "warning" and "data.train=DIR" in not_asked().remedy
