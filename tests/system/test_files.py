"""Folders and files of runs."""

import datetime
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dali_pipes.system import files
from dali_pipes.system.files import new_folder


@pytest.fixture
def clock(monkeypatch):
    """Stands still, as for runs that begin in the same second."""

    class Still(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 26, 3, 4, 5, tzinfo=tz)

    monkeypatch.setattr(files.datetime, "datetime", Still)


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path, clock, monkeypatch):
    """None of them knows of the others before it makes its folder."""
    monkeypatch.setattr(Path, "exists", lambda _: False)
    with ThreadPoolExecutor(8) as pool:
        made = sorted(pool.map(lambda _: new_folder(tmp_path / "a/b").name, range(20)))
    stamp = "2026-11-26_03-04-05"
    assert made == sorted([stamp, *(f"{stamp}_{number}" for number in range(2, 21))])
    assert sorted(each.name for each in (tmp_path / "a/b").iterdir()) == made
