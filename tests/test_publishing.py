"""What is published, and README's way to it with pip."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
PIP_LINES = re.compile(r"## With pip\n.*?```bash\n(.*?)```", re.DOTALL)

pytestmark = [pytest.mark.release, pytest.mark.timeout(3600)]


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


def test_pypi_would_take_the_wheel_and_the_sdist(checkout):
    subprocess.run([sys.executable, "-m", "build"], cwd=checkout, check=True)
    files = sorted(each.name for each in (checkout / "dist").iterdir())
    assert {name.rpartition(".")[2] for name in files} == {"gz", "whl"}
    check = [sys.executable, "-m", "twine", "check", "--strict", *(checkout / "dist").iterdir()]
    subprocess.run(check, check=True)


def test_the_pip_lines_of_readme_end_in_a_trained_step(checkout):
    """With Debian's Python where there is one; a download of some gigabytes."""
    lines = PIP_LINES.search((REPO / "README.md").read_text())[1]
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    script = f"set -euo pipefail\n{lines.replace('python3 -m venv', f'{python} -m venv')}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=checkout,
        # a mirror of PyPI is named by pip's own variables, where one is used
        env={name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        | {"PATH": "/usr/bin:/bin", "HOME": str(checkout), "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert '"images"' in done.stdout.splitlines()[-1]
