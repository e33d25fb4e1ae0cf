"""Which samples, in which order: the program's own samplers, run under seeds of their own."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from dali_pipes.adapters.lazy.random_numbers import own_numbers, read_states, restore, seed_all


class Ask(NamedTuple):
    """Which sample is wanted."""

    epoch: int
    place: int  # in the epoch
    index: Any


class Order:
    """The program's (batch) sampler: gives `Ask`s, and with a seed the same order for each (seed, epoch)."""

    def __init__(self, sampler: Any, seed: int | None, batched: bool):
        self.sampler, self.seed, self.batched, self.epoch, self.skip = sampler, seed, batched, 0, 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        chosen = iter(self.sampler) if self.seed is None else self._seeded(self.epoch)
        return itertools.islice(self._asks(chosen, self.epoch), self.skip, None)

    def _asks(self, chosen: Iterator[Any], epoch: int) -> Iterator[Any]:
        place = itertools.count()
        for each in chosen:
            yield (
                [Ask(epoch, next(place), index) for index in each]
                if self.batched
                else Ask(epoch, next(place), each)
            )

    def _seeded(self, epoch: int) -> Iterator[Any]:
        """What the sampler gives, whose random numbers are apart from all others."""
        generator = getattr(getattr(self.sampler, "sampler", self.sampler), "generator", None)
        if generator is not None:
            generator.manual_seed(hash((self.seed, epoch)) & 2**63 - 1)
        with own_numbers(True):
            seed_all(self.seed, "order", epoch)
            order, states = iter(self.sampler), read_states()
        while True:
            with own_numbers(True):
                restore(states)
                try:
                    chosen = next(order)
                except StopIteration:
                    return
                states = read_states()
            yield chosen
