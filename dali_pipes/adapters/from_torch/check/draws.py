"""Compares the distributions of what live steps draw with those of the plan: `compare_draws`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.adapters.from_torch.check import crops, whole
from dali_pipes.adapters.from_torch.check.common import choose_samples
from dali_pipes.adapters.transforms.reading import refuse_unless
from dali_pipes.data.manifest import Manifest
from dali_pipes.plan.philox import Draws
from dali_pipes.plan.transforms import Transform

DRAWS = 8  # per sample
_TOLERANCE = 0.004  # in these quantities, since crops begin at whole pixels
_FALSE_ALARM_RATE = 1e-6  # the probability that equal distributions are found different


def compare_draws(
    live: list[Any],
    manifest: Manifest,
    transform: Transform,
    seed: int,
    before: Sequence[Any] = (),
) -> str:
    """Compares the distributions of what the live steps draw and of what the plan draws, by the
    test of Kolmogorov and Smirnov.

    Args:
        live: the steps that move pixels, in their order.
        before: the steps on the whole image, which come before them.

    Returns:
        The largest distance of two distributions, in words.

    Raises:
        NotConvertibleError: a distance is larger than chance allows.
    """
    ids = choose_samples(len(manifest))
    sizes = manifest.take_sizes(ids, upright=transform.exif == "apply")

    # epochs of a plan are independent draws of the same samples
    each_epoch = [Draws(seed, epoch, ids) for epoch in range(DRAWS)]
    befores = [transform.draw_before(sizes, draws) for draws in each_epoch]
    # the live steps of the crop are called with images as the steps before it leave them
    left = [before[-1].size if before else sizes for before in befores]
    planned = [
        crops.of_geometry(transform.geometry(size, draws), transform.shape)
        for size, draws in zip(left, each_epoch, strict=True)
    ]
    ours, theirs = np.concatenate(planned), crops.of_steps(live, np.concatenate(left))

    distances = dict(zip(crops.QUANTITIES, map(distance, ours.T, theirs.T), strict=True))
    if before:
        small = whole.shrink(sizes)
        drawn = [whole.of_plan(transform, small, draws) for draws in each_epoch]
        seen = whole.of_steps(before, np.tile(small, (DRAWS, 1)))
        names, moved = whole.QUANTITIES, np.concatenate(drawn)
        distances |= dict(zip(names, map(distance, moved.T, seen.T), strict=True))

    # the critical value for two samples of this size
    allowed = float(np.sqrt(-np.log(_FALSE_ALARM_RATE / 2) / len(ours)))
    name, largest = max(distances.items(), key=lambda each: each[1])
    found = (
        f"over {len(ours)} draws the largest distance of distributions is {largest:.3f}, "
        f"of {name} (chance: up to {allowed:.3f})"
    )
    refuse_unless(
        largest <= allowed,
        "the transform",
        found,
        "compare both loaders' batches, and report it with the transform",
    )
    return found


def distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Returns the largest difference of two cumulative distributions, from 0 to 1; values within
    `_TOLERANCE` count as equal.
    """
    one, other = (np.sort(each[~np.isnan(each)]) for each in (one, other))
    if not (len(one) and len(other)):
        return 0.0

    def above(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
        """Returns how far the share of `a` up to a value exceeds that of `b` up to a bit more."""
        return float(
            (
                np.arange(1, len(a) + 1) / len(a)
                - np.searchsorted(b, a + _TOLERANCE, "right") / len(b)
            ).max()
        )

    return max(above(one, other), above(other, one), 0.0)
