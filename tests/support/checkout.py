"""A copy of this checkout, in which something may be built."""

import shutil
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
    """What git has of this checkout, in another folder."""
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, files.split("\0")):
        if (REPO / name).is_file():
            target = tmp_path / "checkout" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / name, target)
    return tmp_path / "checkout"
