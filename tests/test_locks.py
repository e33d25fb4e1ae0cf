"""The hash-locked requirements hold all that pyproject.toml asks for, and one CUDA."""

import re
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
CU13 = {"nvidia-dali-cuda120": "nvidia-dali-cuda130", "cupy-cuda12x": "cupy-cuda13x"}


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


def wanted(extra):
    return {*map(package, PROJECT["dependencies"]), *asked(extra)}


def locked(name):
    """Package, version and marker of each line."""
    return set(
        re.findall(
            r"^([\w.-]+)(==\S+.*)", (REPO / f"requirements/{name}.txt").read_text(), re.MULTILINE
        )
    )


def names(name):
    return {package for package, _ in locked(name)}


@pytest.mark.parametrize("extra", ["base", *EXTRAS])
def test_a_lock_holds_every_direct_dependency(extra):
    """What users of another library have of it already is locked for the tests only."""
    alone = (REPO / f"requirements/{extra}.txt").exists()
    assert alone or extra in ("lightning", "accelerate", "transformers", "timm", "ray")
    assert wanted(extra) <= names(extra if alone else "dev")


@pytest.mark.parametrize("extra", ["base", "train", "dev"])
def test_a_lock_for_cuda_13_holds_every_direct_dependency(extra):
    assert {CU13.get(each, each) for each in wanted(extra)} <= names(f"{extra}-cu13")


@pytest.mark.parametrize(("major", "suffix"), [(12, ""), (13, "-cu13")])
@pytest.mark.parametrize("extra", ["base", "train", "dev"])
def test_a_lock_holds_one_cuda(extra, major, suffix):
    """DALI, nvImageCodec and CuPy say theirs in their names, and PyTorch by the toolkit that its
    wheel asks for.
    """
    found = {
        package: re.search(r"-cu(?:da)?(\d\d)0?x?$", package) for package in names(extra + suffix)
    }
    assert {int(match[1]) for match in found.values() if match} == {major}
    (toolkit,) = [
        version for package, version in locked(extra + suffix) if package == "cuda-toolkit"
    ]
    assert toolkit.startswith(f"=={major}.")


@pytest.mark.parametrize("extra", ["train", "dev"])
def test_what_is_tested_on_cuda_13_is_what_is_installed(extra):
    assert locked("base-cu13") <= locked(f"{extra}-cu13")
