"""Permutations of the numbers below n: stored ones, and from 2**24 numbers on a keyed bijection that costs no memory."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dali_pipes.plan.philox import HIGH, Kind, philox4x32

Int = NDArray[np.int64]
LARGE = 2**24


def permuted(n: int, seed: int, number: int, places: Int) -> Int:
    """What stands at these places of the `number`-th permutation of the numbers below n."""
    return stored(n, seed, number)[places] if n < LARGE else bijection(n, seed, number, places)


@lru_cache(maxsize=4)
def stored(n: int, seed: int, number: int) -> Int:
    """A uniformly random permutation: the order of n keys from NumPy's Philox, whose raw stream is fixed for all versions."""
    keys = np.random.Philox(key=seed | number << 64).random_raw(n)
    order = np.argsort(keys, kind="stable")
    order.flags.writeable = False
    return order


def bijection(n: int, seed: int, number: int, places: Int) -> Int:
    """A keyed bijection of the numbers below n: O(len(places)) time and memory, whatever n.

    A Feistel network on the least even number of bits that holds n (Luby and Rackoff, "How to construct pseudorandom permutations
    from pseudorandom functions", 1988), with Philox as its function; what falls outside of n goes through it again until it falls
    inside ("cycle walking": Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002), four times at most on average.
    """
    bits = max(1, math.ceil((n - 1).bit_length() / 2))
    found, outside = places.copy(), np.arange(len(places))
    while len(outside):
        found[outside] = walked = _feistel(found[outside], bits, seed, number)
        outside = outside[walked >= n]
    return found


def _feistel(values: Int, bits: int, seed: int, number: int) -> Int:
    left, right, mask = values >> bits, values & ((1 << bits) - 1), (1 << bits) - 1
    for turn in range(max(6, 36 // bits)):  # fewer bits are mixed by more rounds
        word = philox4x32((right, number, turn, 1 << HIGH | Kind.ORDER), seed)[0]
        left, right = right, left ^ (word.astype(np.int64) & mask)
    return left << bits | right
