"""Whether a program's batches are equal, or within a tolerance, when its pictures are lazy."""

from functools import partial
from typing import Any, NamedTuple

from programs.corpus import Program
from programs.running import (
    Run,
    epochs_of,
    find_difference,
    find_distance,
    lazily,
    run_apart,
    without_pixels,
    work,
)


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
    if difference := find_difference(without_pixels(old), without_pixels(new)):
        return Comparison(difference, 0.0, 0.0, new)
    return Comparison("", *find_distance(old, new), new)
