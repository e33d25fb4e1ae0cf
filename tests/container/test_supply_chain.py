"""What the image is made of: listed, hash-locked, and looked up among known vulnerabilities where
that service answers.
"""

import json
import os
import re
import subprocess
import sys
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


def test_the_sbom_lists_what_the_lock_names_and_nothing_else(engine, image):
    script = [sys.executable, REPO / "scripts/container/sbom.py", image]
    environment = {**os.environ, **engine.environment, "ENGINE": engine.command}
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["bomFormat"] == "CycloneDX"
    python = {
        each["name"].lower().replace("_", "-"): each
        for each in found["components"]
        if ":pypi/" in each.get("purl", "")
    }
    lock = locked("train")
    assert all(
        each["version"] in lock[name] for name, each in python.items() if name != "dali-pipes"
    )
    assert {"torch", "nvidia-dali-cuda120", "nvidia-nvjpeg-cu12", "lightning"} <= set(python)
    assert not {"triton", "tensorflow-cpu", "pytest", "uv", "pip"} & set(python)
    debian = {
        each["name"] for each in found["components"] if each.get("purl", "").startswith("pkg:deb/")
    }
    assert {"libc6", "libstdc++6"} <= debian and not {"gcc", "g++", "build-essential"} & debian


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
