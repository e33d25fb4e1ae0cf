"""Random states: those of Python, NumPy and torch, and those of generators that objects hold."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.from_torch.recording.objects import is_a


@contextmanager
def states_kept(device: torch.device | None = None) -> Iterator[None]:
    """Restores Python's and NumPy's random states afterwards, and torch's on the CPU and, if it is
    a GPU, on the device.
    """
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if _is_gpu(device) else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def seed_all(seed: int, device: torch.device | None = None) -> None:
    """Seeds Python's and NumPy's random numbers, and torch's on the CPU and, if it is a GPU, on the
    device.
    """
    random.seed(seed)
    np.random.seed(seed)
    # not torch.manual_seed, which seeds all GPUs too, whose states nobody restores
    torch.default_generator.manual_seed(seed)
    if _is_gpu(device):
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def _is_gpu(device: torch.device | None) -> bool:
    return device is not None and device.type == "cuda"


def random_states() -> tuple[Any, ...]:
    """The states of random numbers, in the order of `STATES`, to be compared."""
    numpy: Any = np.random.get_state()
    return (
        random.getstate(),
        (numpy[1].tobytes(), numpy[2]),
        torch.get_rng_state().numpy().tobytes(),
    )


STATES = ("random", "numpy.random", "torch", "a generator of its own")


def generator_state(value: Any) -> Any:
    """The state of a random generator, to be compared and restored; None: it is none."""
    if is_a(value, np.random.Generator):
        return value.bit_generator.state
    if is_a(value, np.random.RandomState):
        return value.get_state(legacy=False)
    if is_a(value, random.Random) and not is_a(value, random.SystemRandom):
        return value.getstate()
    return value.get_state() if is_a(value, torch.Generator) else None


def set_generator_state(value: Any, state: Any) -> None:
    if is_a(value, np.random.Generator):
        value.bit_generator.state = state
    elif is_a(value, random.Random):
        value.setstate(state)
    else:
        value.set_state(state)
