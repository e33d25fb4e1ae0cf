"""What a result says of where it comes from."""

import subprocess

import nvidia.dali
import pytest

from dali_pipes.system import provenance as module
from dali_pipes.system.provenance import DALI, provenance


def test_the_dali_that_runs_is_named_whatever_its_cuda():
    versions = provenance({}, [])["versions"]
    assert [versions[name] for name in DALI if versions[name]] == [nvidia.dali.__version__]


@pytest.mark.parametrize("is_checkout", [True, False])
def test_the_commit_is_that_of_this_package_alone(tmp_path, monkeypatch, is_checkout):
    """A package in the .venv of somebody's repository is not of its commit."""
    file = tmp_path / ".venv/dali_pipes/provenance.py"
    file.parent.mkdir(parents=True)
    file.touch()
    (tmp_path / ".gitignore").write_text("" if is_checkout else ".venv\n")

    def git(*arguments):
        person = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        command = ["git", *person, "-C", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        git(*arguments)
    monkeypatch.setattr(module, "__file__", str(file))
    monkeypatch.setenv("DALI_PIPES_COMMIT", "of the container")
    head = git("rev-parse", "HEAD") if is_checkout else "of the container"
    assert provenance({}, [])["commit"] == head

    # a file of the repository that was changed since
    (tmp_path / "more.txt").touch()
    assert provenance({}, [])["commit"] == (f"{head}+" if is_checkout else head)
