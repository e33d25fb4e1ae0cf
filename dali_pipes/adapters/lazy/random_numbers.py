"""Random numbers of a program: which generators it has, their seeds, and their states.

Python, NumPy and PyTorch have a generator each that all code shares. A program may have more: an
`np.random.default_rng()` that its data set keeps, a `torch.Generator`, those of albumentations'
transforms. `Numbers` finds them, and seeds, reads and restores all of them together.
"""

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info

from dali_pipes.adapters.lazy.reach import reach

# the generators that all code shares
_SHARED_BY_ALL = {
    id(each) for each in (random._inst, np.random.mtrand._rand, torch.default_generator)
}


class States(NamedTuple):
    """Of the three generators that all code shares, in a form that pickles fast."""

    python: tuple[int, bytes, float | None]
    numpy: tuple[Any, ...]
    torch: bytes


def read_states() -> States:
    """The states of the shared generators: 55 µs, most of it NumPy's."""
    version, words, gauss = random.getstate()
    numpy: tuple[Any, ...] = np.random.get_state(legacy=True)  # type: ignore[assignment]
    name, keys, *rest = numpy
    return States(
        (version, np.array(words, np.uint32).tobytes(), gauss),
        (name, keys.tobytes(), *rest),
        torch.get_rng_state().numpy().tobytes(),
    )


def restore(states: States) -> None:
    version, words, gauss = states.python
    random.setstate((version, tuple(np.frombuffer(words, np.uint32).tolist()), gauss))
    name, keys, *rest = states.numpy
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))
    torch.set_rng_state(torch.frombuffer(bytearray(states.torch), dtype=torch.uint8))


@contextmanager
def own_numbers(active: bool = True) -> Iterator[None]:
    """Leaves the shared generators of the process as they were before."""
    global _IS_SEEDED
    before = read_states() if active else None
    try:
        yield
    finally:
        if before:
            restore(before)
            _IS_SEEDED = False


def seed_of(*key: Any) -> int:
    """A seed of 63 bits. Equal keys give equal seeds, in all processes and versions."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_shared(*key: Any) -> None:
    """Seeds the shared generators, and those of albumentations, by a key; in a worker it is what
    `get_worker_info().seed` gives, too.
    """
    seed = seed_of(*key)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    # torch.manual_seed would seed the generators of all GPUs, too
    torch.default_generator.manual_seed(seed)
    _seed_albumentations(seed)
    if cv2 := sys.modules.get("cv2"):
        cv2.setRNGSeed(seed & 0x7FFFFFFF)
    if worker := get_worker_info():  # a program may draw from its seed
        vars(worker)["seed"] = seed


class FoundGenerator(NamedTuple):
    """A generator of a program's own.

    Attributes:
        path: how to reach it, such as `dataset.rng`.
        is_of_albumentations: whether one of its transforms holds it.
    """

    generator: Any
    path: str
    is_of_albumentations: bool


class Numbers:
    """All generators that a program draws from in its samples.

    Args:
        is_seeded: whether they are to be seeded; the transforms of albumentations then share two,
            and not those that they have.
        roots: where those of its own may be: its data set and its collate function, by name.

    Attributes:
        own: each generator that was found, and the path to it, such as `dataset.rng`.
    """

    def __init__(self, is_seeded: bool, **roots: Any):
        found = find_generators(**roots)
        self.own = [each for each in found if not (is_seeded and each[2])]

    def seed(self, *key: Any) -> None:
        """Seeds all by a key, each in its own way."""
        seed_shared(*key)
        for number, (generator, _, _) in enumerate(self.own):
            _seed_one(generator, seed_of(*key, number))

    def states(self) -> tuple[States, dict[str, Any]]:
        return read_states(), {path: _state_of(generator) for generator, path, _ in self.own}

    def own_changed(self, states: dict[str, Any]) -> bool:
        """Whether a generator of the program's own has drawn since."""
        return any(
            not _is_same_state(states.get(path), _state_of(generator))
            for generator, path, _ in self.own
        )

    def restore(self, states: tuple[States, dict[str, Any]]) -> None:
        restore(states[0])
        for generator, path, _ in self.own:
            if path in states[1]:
                _restore_one(generator, states[1][path])


# Generators of the program's own


def find_generators(**roots: Any) -> list[FoundGenerator]:
    """The generators that can be reached from some objects, by name. Equal objects give equal
    lists, also in another process.
    """
    return [
        FoundGenerator(value, path, is_of_albumentations)
        for value, path, _, is_of_albumentations in reach(roots)
        if _is_generator(value) and id(value) not in _SHARED_BY_ALL
    ]


def _is_generator(value: Any) -> bool:
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)  # which has no state
    return isinstance(value, (np.random.Generator, np.random.RandomState, torch.Generator))


def _seed_one(generator: Any, seed: int) -> None:
    if isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.RandomState):
        generator.seed(seed & 0xFFFFFFFF)
    else:
        fresh = type(generator.bit_generator)(seed)
        generator.bit_generator.state = fresh.state


def _state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, (torch.Generator, np.random.RandomState)):
        return generator.get_state()
    return generator.bit_generator.state


def _is_same_state(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    return repr(one) == repr(other) if isinstance(one, (tuple, dict)) else one is other


def _restore_one(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, (torch.Generator, np.random.RandomState)):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


# albumentations

_ALBUMENTATIONS = "albumentations.core"
# one generator of NumPy and one of Python for all of its transforms: each has two of its own
# otherwise, and to seed those takes longer than to note what ten transforms do
_SHARED = np.random.default_rng(0), random.Random(0)
_KNOWN: set[type] = set()  # classes that draw from these
_IS_SEEDED = False


def _seed_albumentations(seed: int) -> None:
    """From now on its transforms draw from generators that are seeded here. Its `set_random_seed`
    would give all transforms of a Compose equal numbers.
    """
    global _IS_SEEDED
    if f"{_ALBUMENTATIONS}.composition" not in sys.modules:
        return
    _IS_SEEDED = True
    _SHARED[0].bit_generator.state = np.random.PCG64(seed).state
    _SHARED[1].seed(seed)
    if not _KNOWN:
        for name in ("composition", "transforms_interface"):
            for kind in list(vars(sys.modules[f"{_ALBUMENTATIONS}.{name}"]).values()):
                if isinstance(kind, type) and hasattr(kind, "set_random_state"):
                    _share_generators(kind)


def _share_generators(kind: Any) -> None:
    if kind in _KNOWN or "__call__" not in vars(kind):
        return
    _KNOWN.add(kind)
    call = kind.__call__

    @wraps(call)
    def call_seeded(self: Any, *args: Any, **data: Any) -> Any:
        if _IS_SEEDED and self.random_generator is not _SHARED[0]:
            self.set_random_state(*_SHARED)
        return call(self, *args, **data)

    kind.__call__ = call_seeded
