"""Tests here load thumbnails: what they are about is not in the pixels. Shards may be behind a URL,
with an empty cache for their copies.
"""

import pytest
from make_shards import tar_shards

from dali_pipes.data.shards import store_requests


@pytest.fixture(scope="session")
def manifest(thumbnails):
    return thumbnails


@pytest.fixture(scope="session")
def image_folder(thumbnails):
    return thumbnails.root


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store_requests, "_FIRST_PAUSE_S", 0.001)
    return tmp_path / "cache"


@pytest.fixture
def store(manifest, tmp_path):
    return tar_shards(manifest, tmp_path / "store")
