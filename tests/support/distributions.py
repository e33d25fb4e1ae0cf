"""How far two distributions are apart, as Kolmogorov and Smirnov measure it."""

import numpy as np

_TOLERANCE = 0.004  # of values that are equal, since crops begin at whole pixels


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two cumulative distributions, from 0 to 1; values within
    `_TOLERANCE` count as equal.
    """
    one, other = (np.sort(each[~np.isnan(each)]) for each in (one, other))
    if not (len(one) and len(other)):
        return 0.0

    def above(a: np.ndarray, b: np.ndarray) -> float:
        """How far the share of `a` up to a value exceeds that of `b` up to a bit more."""
        shares = np.searchsorted(b, a + _TOLERANCE, "right") / len(b)
        return float((np.arange(1, len(a) + 1) / len(a) - shares).max())

    return max(above(one, other), above(other, one), 0.0)
