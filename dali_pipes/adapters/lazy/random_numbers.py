"""Random numbers of a program: seeded by (seed, epoch, place in the epoch), kept, and set back."""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(*numbers: Any) -> None:
    """Seeds all generators of this process by these numbers."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    _seed_albumentations(seed)


def _seed_albumentations(seed: int) -> None:
    """Its Composes have generators of their own; each is seeded when it is called next."""
    composition = sys.modules.get("albumentations.core.composition")
    if composition is None:
        return
    _ALBUMENTATIONS["seed"], _ALBUMENTATIONS["seeded"] = seed, set()
    if "call" not in _ALBUMENTATIONS:
        _ALBUMENTATIONS["call"] = call = composition.Compose.__call__

        def seeded(self: Any, *args: Any, **data: Any) -> Any:
            if id(self) not in _ALBUMENTATIONS["seeded"]:
                _ALBUMENTATIONS["seeded"].add(id(self))
                seed = _ALBUMENTATIONS["seed"]
                self.set_random_state(
                    np.random.default_rng(seed), random.Random(seed)
                )  # set_random_seed gives all steps equal numbers
            return call(self, *args, **data)

        composition.Compose.__call__ = seeded


_ALBUMENTATIONS: dict[str, Any] = {}


def read_states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def restore(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@contextmanager
def own_numbers(active: bool) -> Iterator[None]:
    """Leaves the random numbers of the training process as they are."""
    before = read_states() if active else None
    try:
        yield
    finally:
        if before:
            restore(before)
