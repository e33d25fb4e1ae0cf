"""The hash-locked requirements hold all that pyproject.toml asks for."""

import re
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def package(requirement):
    return re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-")


@pytest.mark.parametrize("extra", ["base", *EXTRAS])
def test_a_lock_holds_every_direct_dependency(extra):
    wanted = {package(each) for each in PROJECT["dependencies"] + EXTRAS.get(extra, [])} - {"dali-pipes"}
    locked = set(re.findall(r"^([\w.-]+)==", (REPO / f"requirements/{extra}.txt").read_text(), re.MULTILINE))
    assert wanted <= locked
