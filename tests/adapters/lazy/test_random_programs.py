"""Little programs at random make the same with lazy pictures as with true ones."""

from functools import partial
from itertools import zip_longest

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import chains
from programs.pictures import make_pictures
from programs.running import in_a_fork, lazily, print_all
from torch.utils.data import DataLoader


@pytest.fixture(scope="module", autouse=True)
def small_pictures(tmp_path_factory):
    make_pictures(tmp_path_factory.mktemp("small"))
    chains.sources()


def compare(programs):
    dataset = chains.Programs(programs)
    loader = DataLoader(dataset, batch_size=2, collate_fn=list)
    for theirs, ours in zip_longest(loader, lazily(loader, check=False)):
        assert print_all(ours) == print_all(theirs)


def search(count):
    """In a process of its own, since libraries are changed for lazy pictures."""
    options = {"max_examples": count, "database": None, "deadline": None}
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    several = st.lists(chains.programs(), min_size=1, max_size=4)
    in_settings = settings(**options, suppress_health_check=checks, report_multiple_bugs=False)
    return in_a_fork(partial(in_settings(given(several)(compare))), seconds=280)


def test_random_programs():
    assert search(40) is None


@pytest.mark.slow
def test_many_random_programs():
    assert search(1500) is None
