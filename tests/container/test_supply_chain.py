"""What the image is made of: listed, hash-locked, and looked up among known vulnerabilities where
that service answers.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
pytestmark = [pytest.mark.container, pytest.mark.timeout(2400)]


def locked(name):
    """Package and version of every line of a lock, each of which has to have a hash."""
    entries = re.split(r"\n(?=\S)", (REPO / f"requirements/{name}.txt").read_text())
    found = {}
    for entry in entries:
        if entry.startswith("#"):
            continue
        assert "--hash=sha256:" in entry, entry
        package, version = re.match(r"([\w.-]+)==([\w.+!]+)", entry).groups()
        found.setdefault(package.lower().replace("_", "-").replace(".", "-"), set()).add(version)
    return found


@pytest.mark.parametrize("name", ["train", "train-cu13", "uv", "build", "container"])
def test_everything_that_the_build_installs_has_a_hash(name):
    assert len(locked(name)) > 0


def test_known_vulnerabilities(tools):
    """Only reported: a new one is no reason that an unchanged program fails its tests."""
    command = [
        tools / "pip-audit",
        "--disable-pip",
        "--require-hashes",
        "--progress-spinner=off",
        "--format=json",
    ]
    lock = REPO / "requirements/train.txt"
    done = subprocess.run(
        [*command, "-r", lock], capture_output=True, text=True, check=False, timeout=250
    )
    if not done.stdout:
        pytest.skip(
            "the service for vulnerabilities cannot be reached: "
            f"{done.stderr.strip().splitlines()[-1]}"
        )
    answered = [
        each for each in json.loads(done.stdout)["dependencies"] if "skip_reason" not in each
    ]
    if not answered:
        pytest.skip(
            "the service for vulnerabilities knows none of the packages: it cannot be reached "
            "from here"
        )
    for each in answered:
        print(
            each["name"], each["version"], [vulnerability["id"] for vulnerability in each["vulns"]]
        )
    assert {each["name"] for each in answered} <= set(locked("train"))
