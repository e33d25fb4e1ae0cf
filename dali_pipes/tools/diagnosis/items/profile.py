"""Where the time of a data set's items goes: makes some in this thread and samples its stack.

`profile_items` is what others call. The flow:

maker.py: fetches and collates items as a DataLoader does
-> sampler.py: adds up time by stack, each millisecond, by a signal or from another thread
-> places.py: names each stack by the function, transform, decoder or loop that the time belongs to
-> `_summary` adds up the stacks of one place, and makes `ItemPart`s of the places
"""

import random
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dali_pipes.tools.diagnosis.items.maker import MAX_FAILED, ItemMaker
from dali_pipes.tools.diagnosis.items.places import Place, name_place
from dali_pipes.tools.diagnosis.items.sampler import StackSampler, make_sampler

MIN_SHARE = 0.02
OPERATOR_S = 5e-6  # a line of Python takes a tenth of it; a longer one computes in C
LOOP_SHARE = 0.1  # share of an item's time from which on a loop's lines are counted


@dataclass(frozen=True, slots=True)
class ItemPart:
    """One place where the time goes.

    Attributes:
        name: as a person would say it: "np.loadtxt", "RandomRotation", "a Python loop in resize()".
        where, text: file and line number of the user's own code, and the text of that line; "" if
            none of it is on the stack.
        share: its share of the elapsed time of fetching and collating.
        seconds: its seconds per item.
        waits: whether it is of kind "wait", or for most of its time nothing was computed, and the
            thread did not stand in the run queue either.
        kind: "open", "decode", "transform", "python_loop", "text_parsing", "wait", "collate",
            "operator" (C code that is called by operators in a loop of the user's) or "other".
    """

    name: str
    where: str
    text: str
    share: float
    seconds: float
    waits: bool
    kind: str


@dataclass(frozen=True, slots=True)
class ItemProfile:
    """What items cost; all seconds are per item, of fetching and collating.

    Attributes:
        items, failed: how many were made, and how many raised an exception and were left out.
        cpu_s: CPU time of all threads of this process.
        queued_s, blocked_s: time in which the thread could run but had no core, and the rest, in
            which it waited.
        collate_s: time in the collate function.
        parts: the parts of at least 2 % of the time, the largest first.
    """

    items: int
    failed: int
    seconds: float
    cpu_s: float
    queued_s: float
    blocked_s: float
    collate_s: float
    parts: list[ItemPart]


def profile_items(
    dataset: Any,
    batches: Iterable[Any],
    collate_fn: Callable[[Any], Any],
    seconds: float = 1.0,
    *,
    auto_collation: bool = True,
) -> ItemProfile:
    """Makes items for so many seconds, as a DataLoader without workers does, and samples the stack
    of this thread.

    The random states of Python, NumPy and torch (CPU) are put back. Warnings are not shown.

    Args:
        batches: of indices, or single indices without auto_collation; for an IterableDataset only
            their lengths count.

    Raises:
        Exception: the first of an item, if none could be made.
    """
    watched = ItemMaker(dataset, collate_fn, auto_collation)

    with _same_random_states(), warnings.catch_warnings(record=True):
        sampler = make_sampler()
        with sampler:
            begin = time.perf_counter()
            for batch in batches:
                if (
                    not watched.take(batch)
                    or time.perf_counter() - begin >= seconds
                    or watched.failed >= MAX_FAILED
                ):
                    break

        # within the block: it may make one more item, whose random numbers are put back as well
        profile = _summary(watched, sampler)

    if not watched.items and watched.error is not None:
        raise watched.error
    return profile


@contextmanager
def _same_random_states() -> Iterator[None]:
    python, numpy, torch_ = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torch_)


def _summary(watched: ItemMaker, sampler: StackSampler) -> ItemProfile:
    items, total = max(watched.items, 1), watched.fetch_s + watched.collate_s
    sums: dict[Place, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for (collates, stack), spent in sampler.stacks.items():
        if stack:
            for index, seconds in enumerate(spent):
                sums[name_place(stack, sampler, collates)][index] += seconds

    wall, cpu, queued = (
        sum(spent[index] for spent in sampler.stacks.values()) for index in range(3)
    )
    wall = max(wall, 1e-9)

    parts = list[ItemPart]()
    for place, spent in sums.items():
        # A sleep is known by its name. Its figures may say otherwise: other threads of the process
        # compute meanwhile, and each sample wakes this thread up, which then stands in the run
        # queue of a busy machine.
        share, waits = spent[0] / wall, place.kind == "wait" or sum(spent[1:]) < spent[0] / 2

        if share >= MIN_SHARE:
            named = (
                _without_operators(place, spent[1] / wall * total / items, watched)
                if share >= LOOP_SHARE
                else place
            )
            parts.append(
                ItemPart(
                    named.name,
                    named.where,
                    named.text,
                    share,
                    share * total / items,
                    waits,
                    named.kind,
                )
            )

    # blocked: the time in which no thread computed and this one did not stand in the run queue
    blocked = sum(max(0.0, spent[0] - spent[1] - spent[2]) for spent in sampler.stacks.values())
    # the samples do not add up to the measured time exactly: they are scaled to it
    scale = total / wall / items
    parts.sort(key=lambda part: -part.share)
    return ItemProfile(
        watched.items,
        watched.failed,
        total / items,
        cpu * scale,
        queued * scale,
        blocked * scale,
        watched.collate_s / items,
        parts,
    )


def _without_operators(place: Place, cpu_s: float, watched: ItemMaker) -> Place:
    """Renames a loop whose lines take longer than Python needs for them by its function: its
    operators compute, not the loop.
    """
    if place.loop is None:
        return place
    lines = watched.count_lines(place.loop)
    if not lines or cpu_s / lines < OPERATOR_S:
        return place
    return replace(place, name=place.name.removeprefix("a Python loop in "), kind="operator")
