"""Shards behind a URL, and an empty cache for their copies."""

import pytest
from make_shards import tar_shards

from dali_pipes.data.shards import remote


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "_FIRST_PAUSE_S", 0.001)
    return tmp_path / "cache"


@pytest.fixture
def store(manifest, tmp_path):
    return tar_shards(manifest, tmp_path / "store")
