"""Pictures that the programs of these tests open, and the connections that they have."""

import stat

import pytest
from lazy_programs import make_pictures

from dali_pipes.adapters.lazy import compared
from dali_pipes.adapters.lazy.patching import patched


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Paths of 20 small JPEGs."""
    return make_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def libraries_know_what_waits():
    with patched():
        yield


@pytest.fixture(autouse=True)
def connections_of_the_test(monkeypatch):
    """Leaves to a test the network connections that it makes. The libraries of earlier tests keep
    some open in this process, and copies of a process that has any do not compare errors.
    """
    descriptors = compared._descriptors
    earlier = {
        (each, about.st_ino) for each, about in descriptors() if stat.S_ISSOCK(about.st_mode)
    }
    monkeypatch.setattr(
        compared,
        "_descriptors",
        lambda: (each for each in descriptors() if (each[0], each[1].st_ino) not in earlier),
    )
