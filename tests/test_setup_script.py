"""scripts/setup.sh, with an installer that does as the test says."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
STAMP = ".venv/.installed"


@pytest.fixture
def checkout(tmp_path):
    """A checkout whose .venv is there, and in which `fail=NAME` makes pip or uv fail."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPTS / "setup.sh", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/dev.txt").write_text("torch==1 \\\n")
    folder = tmp_path / ".venv/bin"
    folder.mkdir(parents=True)
    for name in ("pip", "uv"):
        (folder / name).write_text(f'#!/bin/sh\n[ "$fail" != {name} ]\n')
        (folder / name).chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    return tmp_path


@pytest.mark.parametrize("start", ["setup dev", "setup dev && true", "setup dev || exit 3"])
@pytest.mark.parametrize("fails", ["", "pip", "uv"])
def test_what_was_not_installed_counts_as_missing(checkout, start, fails):
    ran = subprocess.run(
        ["bash", "-c", f"source scripts/setup.sh; {start}"],
        cwd=checkout,
        env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "fail": fails},
        check=False,
    )
    assert (ran.returncode == 0) == (checkout / STAMP).exists() == (fails == "")
