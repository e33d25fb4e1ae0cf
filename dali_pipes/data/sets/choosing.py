"""Some of the samples: `subset` takes samples in any order; `choose` takes samples that stand for
the whole, as filters and splits do; `choose_parts` and `group_numbers` say which samples are in
which part.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.checks import check_number, describe_value
from dali_pipes.data.image_table import ImageTable
from dali_pipes.errors import ConfigError
from dali_pipes.system.hashing import GOLDEN, splitmix64


def subset(images: ImageTable, ids: Any) -> ImageTable:
    """These samples only, numbered anew in the given order.

    Raises:
        ConfigError: there is no such id, or these are not ids.
    """
    # lists, ranges and tensors are taken too
    ids = np.asarray(ids)
    if ids.ndim != 1:
        raise ConfigError(
            f"subset takes a list of sample ids, not {ids.ndim} dimensions; of one image "
            "manifest.subset([ID])"
        )

    if ids.dtype.kind not in "iu" and ids.size:
        raise ConfigError(
            f"subset takes sample ids, not {ids.dtype}; of a mask np.flatnonzero makes ids"
        )

    ids = ids.astype(np.int64)
    if ids.size and not (ids.min() >= 0 and ids.max() < len(images)):
        raise ConfigError(
            f"subset: ids run from 0 to {len(images) - 1}, and one is "
            f"{ids.min() if ids.min() < 0 else ids.max()}"
        )
    return images.select(ids)


def choose(images: ImageTable, ids: NDArray[np.int64]) -> ImageTable:
    """Chooses these samples to stand for the whole.

    What is left out of the whole counts as left out of them too, for `strict` and limits.
    """
    return images.select(ids).with_facts(
        parent_omissions=images.of_whole or images.omissions,
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

    # order the groups by a hash, which is the same on any machine and with any NumPy
    numbers, place, counts = np.unique(groups, return_inverse=True, return_counts=True)
    # the products are meant modulo 2**64
    with np.errstate(over="ignore"):
        # Group and seed have different factors: with one, another seed would only give each group
        # the key of another group.
        keys = (numbers.astype(np.uint64) + np.uint64(1)) * GOLDEN + np.uint64(seed) * np.uint64(
            0xD1342543DE82EF95
        )
        order = np.argsort(splitmix64(keys), kind="stable")

    # cut at the ends of groups
    ends = np.append(0, counts[order].cumsum())
    wanted = np.append(0.0, np.cumsum(list(fractions.values()))) * len(groups)
    cuts = pairwise(int(np.abs(ends - end).argmin()) for end in wanted)

    return {
        name: np.flatnonzero(np.isin(place, order[slice(*cut)]))
        for name, cut in zip(fractions, cuts, strict=True)
    }


def group_numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Numbers the values of a column, (n,): equal values have the same number.

    Raises:
        ConfigError: the column holds lists.
    """
    values = column.combine_chunks()
    if pa.types.is_nested(values.type):
        raise ConfigError("by is a column of lists; name one with a single value for each image")
    return pc.rank(values, "ascending", tiebreaker="dense").to_numpy().astype(np.int64)
