import os
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def found_by_children(monkeypatch):
    """The package lies in scripts/, and gpu_check.sh says so to all processes."""
    monkeypatch.setenv("PYTHONPATH", str(SCRIPTS), prepend=os.pathsep)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # as a job leaves it
