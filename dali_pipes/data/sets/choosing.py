"""Some of the samples: `choose` takes samples that stand for the whole, as filters and splits do;
`choose_parts`, `choose_of_strata` and `group_numbers` say which samples are in which part, and
`find_lacking` which part has no image of a class.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.checks import check_number, describe_value
from dali_pipes.data.composed import composed_column
from dali_pipes.data.image_table import ImageTable
from dali_pipes.errors import ConfigError
from dali_pipes.system.hashing import GOLDEN, splitmix64

T = TypeVar("T", bound=ImageTable)


def choose(images: T, ids: NDArray[np.int64]) -> T:
    """Chooses these samples to stand for the whole.

    What is left out of the whole counts as left out of them too, for `strict` and limits.
    """
    return images.select(ids).with_facts(
        parent_omissions=images.omissions_in_all,
        parent_bad_images=images.bad_of_whole,
    )


def choose_parts(
    fractions: Mapping[str, float], groups: NDArray[np.int64], seed: int
) -> dict[str, NDArray[np.int64]]:
    """Chooses the ids of each part of a split, in ascending order.

    Groups are put in a random order, and cut where the number of samples comes nearest to the
    fractions.

    Args:
        fractions: name and share of each part.
        groups: (n,) the group of each sample; a group is never divided.

    Raises:
        ConfigError: the fractions are no shares of 1.
    """
    fractions = _check_fractions(fractions)

    # order the groups by a hash
    numbers, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(_hash(numbers, seed), kind="stable")

    # cut at the ends of groups
    ends = np.append(0, counts[order].cumsum())
    wanted = np.append(0.0, np.cumsum(list(fractions.values()))) * len(groups)
    cuts = pairwise(int(np.abs(ends - end).argmin()) for end in wanted)

    return {
        name: np.flatnonzero(np.isin(place, order[slice(*cut)]))
        for name, cut in zip(fractions, cuts, strict=True)
    }


def choose_of_strata(
    fractions: Mapping[str, float],
    groups: NDArray[np.int64],
    strata: NDArray[np.int64],
    seed: int,
) -> dict[str, NDArray[np.int64]]:
    """Chooses the ids of each part of a split, in ascending order, so that each part has its share
    of every stratum, up to one group.

    Args:
        fractions: name and share of each part.
        groups: (n,) the group of each sample; a group is never divided.
        strata: (n,) the stratum of each sample; that of a group's first sample counts for all.

    Raises:
        ConfigError: the fractions are no shares of 1.
    """
    fractions = _check_fractions(fractions)
    numbers, first, place = np.unique(groups, return_index=True, return_inverse=True)
    of = strata[first]
    order = np.lexsort([_hash(numbers, seed), of])
    _, begins, counts = np.unique(of[order], return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(begins, counts)
    # a shift of its own for each stratum, since small ones would all be rounded one way
    shift = _hash(of[order], seed + 1).astype(np.float64) / 2.0**64
    share = np.empty(len(order))
    share[order] = (rank + shift) / np.repeat(counts, counts)

    # a sum of floats may be a little below 1
    ends = np.cumsum(list(fractions.values())) + 1e-9
    part = np.searchsorted(ends, share, side="right")[place]
    return {name: np.flatnonzero(part == number) for number, name in enumerate(fractions)}


def find_lacking(
    images: ImageTable, parts: Mapping[str, NDArray[np.int64]]
) -> dict[str, list[str]]:
    """The classes of which a part has no image and another part has some, by the name of the part;
    nothing unless each image has one class.
    """
    if images.task != "classification":
        return {}
    had = {name: np.unique(images.take_labels(ids)) for name, ids in parts.items() if len(ids)}
    every = np.unique(np.concatenate([*had.values(), np.zeros(0, np.int64)]))
    lacking = {name: np.setdiff1d(every, some).tolist() for name, some in had.items()}
    return {
        name: [images.classes[number] for number in some] for name, some in lacking.items() if some
    }


def _check_fractions(fractions: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(fractions, Mapping):
        raise ConfigError(
            f"fractions is {describe_value(fractions)}; it takes names and shares, such as "
            '{"train": 0.9, "val": 0.1}'
        )
    fractions = {
        name: check_number(f"the share of {name!r}", share, -math.inf, math.inf)
        for name, share in fractions.items()
    }
    if (
        not fractions
        or not all(share > 0 for share in fractions.values())
        # a sum of floats may be a little above 1
        or sum(fractions.values()) > 1 + 1e-9
    ):
        raise ConfigError(
            f"fractions are {dict(fractions)}; each must be positive, and their sum at most 1"
        )
    return fractions


def _hash(numbers: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """A number of 64 bits for each number, the same on any machine and with any NumPy."""
    # the products are meant modulo 2**64
    with np.errstate(over="ignore"):
        # Number and seed have different factors: with one, another seed would only give each number
        # the key of another one.
        factor, by_seed = np.uint64(0xD1342543DE82EF95), np.uint64(seed % 2**64)
        return splitmix64((numbers.astype(np.uint64) + np.uint64(1)) * GOLDEN + by_seed * factor)


def group_numbers(option: str, column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Numbers the values of a column, (n,): equal values have the same number.

    Args:
        option: that names the column.

    Raises:
        ConfigError: the column holds lists.
    """
    values = composed_column(column).combine_chunks()
    if pa.types.is_nested(values.type):
        raise ConfigError(
            f"{option} is a column of lists; name one with a single value for each image"
        )
    return pc.rank(values, "ascending", tiebreaker="dense").to_numpy().astype(np.int64)
