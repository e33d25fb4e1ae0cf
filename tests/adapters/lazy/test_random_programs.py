"""Little programs at random make the same with lazy pictures as with true ones."""

from itertools import zip_longest

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import chains
from programs.pictures import make_pictures
from programs.running import Run, find_distance, in_a_fork, lazily, print_all, tensors_of
from torch.utils.data import DataLoader

import dali_pipes as dp

MEAN = 1.0  # of 255: how far the pixels of a backend may be from the program's, on average
BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "dali": dp.DaliConfig(device="cpu", num_threads=1),
}


@pytest.fixture(scope="module", autouse=True)
def small_pictures(tmp_path_factory):
    make_pictures(tmp_path_factory.mktemp("small"))
    chains.sources()


def search(compare, count, **options):
    """In a process of its own, since libraries are changed for lazy pictures."""
    several = st.lists(chains.programs(**options), min_size=1, max_size=3)
    in_settings = settings(
        max_examples=count,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    return in_a_fork(in_settings(given(several)(compare)), seconds=280)


def compare_bits(programs):
    loader = DataLoader(chains.Programs(programs), batch_size=2, collate_fn=list)
    for theirs, ours in zip_longest(loader, lazily(loader, check=False)):
        assert print_all(ours) == print_all(theirs)


def compare_pixels(config):
    """Of each program a whole batch, since a backend gets what is alike."""

    def compare(programs):
        for each in programs:
            alike = [each._replace(source=source) for source in chains.PLAIN * 2]
            loader = DataLoader(chains.Programs(alike), batch_size=len(alike), collate_fn=list)
            (theirs,), (ours,) = loader, lazily(loader, config, check=False)
            assert shape(ours) == shape(theirs)
            runs = [Run(tensors=[tensors_of(batch)]) for batch in (theirs, ours)]
            assert find_distance(*runs)[0] < MEAN

    return compare


def shape(batch):
    return [(place, kind, str(about)[:30]) for place, kind, about, _ in print_all(batch)]


def test_random_programs():
    assert search(compare_bits, 40) is None


@pytest.mark.slow
def test_many_random_programs():
    assert search(compare_bits, 1200) is None


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_random_programs_by_a_backend(backend):
    assert search(compare_pixels(BACKENDS[backend]), 100, only_smooth=True) is None
