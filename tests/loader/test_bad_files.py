"""Which samples of a failed batch are to blame, and how many streams it takes to find them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned import labelled

from dali_pipes import Plan, Sequential, TrainTransform
from dali_pipes.loader import bad_files

COUNT = 256
MANIFEST = labelled(np.arange(COUNT + 8) % 3)
PLANS = {
    size: Plan(MANIFEST, TrainTransform(size=8), size, sampling=Sequential()) for size in (1, COUNT)
}


class Refusing:
    """A backend that fails with every batch that has one of these ids."""

    def __init__(self, bad):
        self.bad, self.streams = set(bad), 0

    def stream(self, batches):
        self.streams += 1
        if self.bad & set(next(batches).ids.tolist()):
            raise RuntimeError("cannot decode")
        yield None


def find(backend, controls=range(COUNT, COUNT + 8)):
    others = (PLANS[1].batch(0, step) for step in controls)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bad_files, "_problem", lambda *arguments: None)
        found = bad_files.find_bad_samples(
            MANIFEST, PLANS[COUNT].batch(0, 0), backend, others, TrainTransform(size=8)
        )
    assert all("this loader cannot decode it (cannot decode)" in why for why in found.values())
    return found


@settings(max_examples=30)
@given(st.sets(st.integers(0, COUNT - 1), max_size=12))
def test_those_that_the_backend_refuses_are_found_by_halves(bad):
    backend = Refusing(bad)
    assert [*find(backend)] == sorted(bad)
    # two for each halving on the way to a bad one, and two alone
    assert backend.streams <= max(9, len(bad) * (2 * 8 + 2))


@pytest.mark.parametrize("place", [0, 1, 100, 254, 255])
def test_one_among_256_takes_18_streams_at_most(place):
    backend = Refusing([place])
    assert [*find(backend)] == [place]
    assert 10 <= backend.streams <= 18


def test_a_broken_backend_blames_no_file():
    assert find(Refusing(range(COUNT + 8))) == {}


def test_a_batch_of_bad_files_is_blamed_if_others_work():
    assert [*find(Refusing(range(COUNT)))] == [*range(COUNT)]


def test_a_part_that_lacks_memory_hides_no_bad_file():
    class Small(Refusing):
        def stream(self, batches):
            planned = next(batches)
            if len(planned.ids) > 16:
                raise MemoryError
            return super().stream(iter([planned]))

    assert [*find(Small([77]))] == [77]
