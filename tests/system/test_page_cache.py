import os
from pathlib import Path

import pytest

from dali_pipes.system import page_cache
from dali_pipes.system.page_cache import evict, resident_share


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / str(number) for number in range(4)]
    for path in paths:
        path.write_bytes(os.urandom(100_000))
    return paths


def test_what_was_written_is_resident(files):
    assert resident_share(files) == 1


def test_evicted_files_are_gone_and_come_back_when_read(files):
    evict(files)
    share = resident_share(files)
    if share == 1:
        pytest.skip("this file system keeps its pages (tmpfs)")
    assert share == 0
    files[0].read_bytes()
    assert 0.2 <= resident_share(files) <= 0.3


def test_another_owner_s_files_are_unknown(files, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert resident_share(files) is None


def test_empty_files_do_not_count(tmp_path, files):
    (tmp_path / "empty").write_bytes(b"")
    assert resident_share([tmp_path / "empty"]) is None
    assert resident_share([tmp_path / "empty", *files]) == 1


def test_eviction_stops_when_its_time_is_over(tmp_path, monkeypatch):
    files = [tmp_path / str(number) for number in range(50)]
    for file in files:
        file.write_bytes(b"x")
    dropped, clock = [], iter(range(1000))
    monkeypatch.setattr(page_cache.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(page_cache.os, "posix_fadvise", lambda *arguments: dropped.append(1))
    page_cache.evict(files, seconds=10)
    assert len(dropped) == 10


def test_some_files_are_spread_over_all():
    files = [Path(str(number)) for number in range(10_001)]
    some = page_cache.spread(files, 2000)
    assert 1500 < len(some) <= 2000 and some[0] == files[0] and some[-1] in files[-10:]
    assert page_cache.spread(files, 20_000) == files and not page_cache.spread([], 5)
