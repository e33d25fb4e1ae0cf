"""The hash-locked requirements hold all that pyproject.toml asks for, and one CUDA."""

import re
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NOT_IN_DEV = ("cu13", "torchcodec")  # dev-newest has them; dev has PyTorch 2.10 of CUDA 12


def package(requirement):
    return re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-")


def asked(extra):
    for each in EXTRAS.get(extra, []):
        ours = re.match(r"dali_pipes\[(.*)\]", each)
        yield from (
            (package for other in ours[1].split(",") for package in asked(other))
            if ours
            else [package(each)]
        )


def wanted(extra, cuda="cu12"):
    return {*map(package, PROJECT["dependencies"]), *asked(extra), *asked(cuda)}


def locked(name):
    """Package, version and marker of each line."""
    return set(
        re.findall(
            r"^([\w.-]+)(==\S+.*)", (REPO / f"requirements/{name}.txt").read_text(), re.MULTILINE
        )
    )


def names(name):
    return {package for package, _ in locked(name)}


@pytest.mark.parametrize("extra", ["base", *(each for each in EXTRAS if each not in NOT_IN_DEV)])
def test_a_lock_holds_every_direct_dependency(extra):
    """What users of another library have of it already is locked for the tests only."""
    alone = (REPO / f"requirements/{extra}.txt").exists()
    assert alone or extra in ("cu12", "lightning", "accelerate", "transformers", "timm", "ray")
    assert wanted(extra) <= names(extra if alone else "dev")


@pytest.mark.parametrize("extra", ["base", "train", "dev"])
def test_a_lock_for_cuda_13_holds_every_direct_dependency(extra):
    assert wanted(extra, "cu13") <= names(f"{extra}-cu13")


def test_the_newest_lock_holds_every_direct_dependency():
    assert wanted("dev", "cu13") | {"torchcodec"} <= names("dev-newest")


@pytest.mark.parametrize(
    ("lock", "major"),
    [
        *((extra, 12) for extra in ("base", "train", "dev", "dev-dali24")),
        *((extra, 13) for extra in ("base-cu13", "train-cu13", "dev-cu13", "dev-newest")),
    ],
)
def test_a_lock_holds_one_cuda(lock, major):
    """DALI, nvImageCodec and CuPy say theirs in their names, and PyTorch by the CUDA runtime that
    its wheel asks for.
    """
    found = {package: re.search(r"-cu(?:da)?(\d\d)0?x?$", package) for package in names(lock)}
    assert {int(match[1]) for match in found.values() if match} == {major}
    (runtime,) = [
        version for package, version in locked(lock) if re.match(r"nvidia-cuda-runtime", package)
    ]
    assert runtime.startswith(f"=={major}.")


def test_the_newest_lock_is_held_back_by_nothing():
    """Neither by our files, nor on an older Python or another system: a package then has a version
    for each.
    """
    for name in ("torch", "torchvision", "torchcodec", "nvidia-dali-cuda130", "cupy-cuda13x"):
        (version,) = [version for package, version in locked("dev-newest") if package == name]
        assert ";" not in version


@pytest.mark.parametrize("extra", ["train", "dev"])
def test_what_is_tested_on_cuda_13_is_what_is_installed(extra):
    assert locked("base-cu13") <= locked(f"{extra}-cu13")
