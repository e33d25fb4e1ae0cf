import os

import pytest

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
