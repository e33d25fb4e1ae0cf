"""What is published; README's way to it with pip is tried in a container."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.release, pytest.mark.timeout(3600)]


def test_pypi_would_take_the_wheel_and_the_sdist(checkout):
    subprocess.run([sys.executable, "-m", "build"], cwd=checkout, check=True)
    files = sorted(each.name for each in (checkout / "dist").iterdir())
    assert {name.rpartition(".")[2] for name in files} == {"gz", "whl"}
    check = [sys.executable, "-m", "twine", "check", "--strict", *(checkout / "dist").iterdir()]
    subprocess.run(check, check=True)
