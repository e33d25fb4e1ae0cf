"""Which samples are compared, and random states that stay as they were."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.adapters.from_torch.recording.kept import find_generators
from dali_pipes.adapters.from_torch.recording.random_states import (
    generator_state,
    seed_all,
    set_generator_state,
    states_kept,
)

SAMPLES = 64  # that are compared at most


def choose_samples(count: int) -> NDArray[np.int64]:
    """Returns at most `SAMPLES` ids, spread evenly over all."""
    return np.unique(np.linspace(0, count - 1, min(count, SAMPLES)).round().astype(np.int64))


@contextmanager
def random_states_kept(holder: Any = None) -> Iterator[None]:
    """Seeds Python's, NumPy's and torch's random numbers on the CPU with 0, and restores their
    states afterwards, and those of the generators that an object and its transforms hold.
    """
    held = [(each, generator_state(each)) for each in find_generators(holder)]
    try:
        with states_kept():
            seed_all(0)
            yield
    finally:
        for generator, state in held:
            set_generator_state(generator, state)
