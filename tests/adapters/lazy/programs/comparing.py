"""Whether a program's batches are equal, or within a tolerance, when its pictures are lazy."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from programs.corpus import Program
from programs.running import Run, epochs_of, find_difference, lazily, run_apart, work

LEAST = 8  # pixels of a side: smaller tensors are values


class Comparison(NamedTuple):
    """
    Attributes:
        difference: in words; empty: none.
        mean, most: differences of pixels, in 255ths of a tensor's range: the mean of the worst
            tensor, and the largest of all.
        new: the run with lazy pictures.
    """

    difference: str
    mean: float
    most: float
    new: Run


def compare(which: Program, workers: int = 0, config: Any = None, **options: Any) -> Comparison:
    """The program as ever, and with lazy pictures.

    Args:
        config: of the backend that makes the pictures; None: as noted, and no bit may differ.
        options: of the lazy loader.
    """

    def make() -> Any:
        return work(which.make(), workers)

    loop = partial(epochs_of, epochs=which.epochs)
    keeps = config is not None
    old = run_apart(make, loop=loop, keeps_tensors=keeps)
    if old.error:
        raise AssertionError(f"the program itself: {old.error}\n{old.trace}")
    new = run_apart(make, partial(lazily, config=config, **options), loop, keeps)
    if not keeps or new.error:
        return Comparison(find_difference(old, new), 0.0, 0.0, new)
    difference = find_difference(_without_pixels(old), _without_pixels(new))
    if difference:
        return Comparison(difference, 0.0, 0.0, new)
    apart = list(_distances(old, new)) or [(0.0, 0.0)]
    return Comparison("", max(mean for mean, _ in apart), max(most for _, most in apart), new)


def _without_pixels(given: Run) -> Run:
    """What must be equal whoever makes the pixels: structures, types, values, random numbers."""
    batches = [[_without_digest(each) for each in batch] for batch in given.batches]
    return Run(batches, given.error)


def _without_digest(each: tuple[Any, ...]) -> tuple[Any, ...]:
    path, kind, said, digest = each
    if isinstance(said, tuple) and len(said) == 6 and _are_pixels(said[1]):  # of a tensor
        return path, kind, said[:4], None
    is_array = isinstance(said, tuple) and len(said) == 3 and isinstance(said[1], tuple)
    return path, kind, said, None if is_array and _are_pixels(said[1]) else digest


def _are_pixels(shape: Any) -> bool:
    return len(shape) >= 2 and sorted(shape)[-2] >= LEAST


def _distances(old: Run, new: Run) -> Iterator[tuple[float, float]]:
    for theirs, ours in zip(old.tensors, new.tensors, strict=True):
        for path, one in theirs.items():
            if not _are_pixels(one.shape) or not one.size:
                continue
            one, other = one.astype(float), ours[path].astype(float)
            extent = 255.0 if theirs[path].dtype == np.uint8 else max(float(np.ptp(one)), 1e-9)
            apart = np.abs(one - other) * (255 / extent)
            yield float(apart.mean()), float(apart.max())
