"""Permutations: whole ones, and keyed bijections that take no memory, whatever their size."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dali_pipes.plan.philox import HIGH, Kind, philox4x32
from dali_pipes.system.hashing import GOLDEN, splitmix64

Int = NDArray[np.int64]
_MIN_ROUNDS = 6


def random_permutation(n: int, seed: int, number: int) -> NDArray[np.int32]:
    """(n,) int32, a uniformly random permutation of the numbers below n, which is 2**31 at most.

    It is the order of n keys from NumPy's Philox, whose raw stream is the same in all versions.
    """
    # the key has 128 bits: the seed, and above it the permutation's number
    order = np.argsort(np.random.Philox(key=seed | number << 64).random_raw(n), kind="stable")
    # half the memory: who makes one keeps it for an epoch
    return order.astype(np.int32)


def permute(
    n: ArrayLike, places: Int, seed: int, kind: Kind, number: ArrayLike = 0, stream: ArrayLike = 0
) -> Int:
    """The numbers at these places of random permutations of the numbers below n.

    It takes O(len(places)) time and memory. It is a Feistel network on as many bits as n needs
    (Luby and Rackoff, "How to construct pseudorandom permutations from pseudorandom functions",
    1988). Its halves alternate, and have unequal lengths if the number of bits is odd (Schneier and
    Kelsey, "Unbalanced Feistel networks and block cipher design", FSE 1996). Its round function is
    splitmix64 with a key from Philox. A result that is not below n goes through the network again
    until it is: "cycle walking", Black and Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA
    2002); that takes two walks at most on average.

    Args:
        n: from 1 to 2**53; together with `number` and `stream` it says which permutation it is, one
            for all places or one for each.
        number: below 2**56.
        stream: below 2**32.
    """
    numbers = np.asarray(number, np.int64)
    words = philox4x32(
        (stream, numbers & 0xFFFFFFFF, 0, numbers >> 32 << HIGH | kind), seed
    ).astype(np.uint64)
    keys = np.broadcast_to(words[0] << np.uint64(32) | words[1], places.shape)

    ns = np.broadcast_to(np.asarray(n, np.int64), places.shape)
    # frexp's exponent of n - 1 is its length in bits; a float64 is exact up to 2**53
    bits = np.maximum(np.frexp(ns - 1.0)[1], 1).astype(np.int64)

    # cycle walking: only what is still outside goes through the network again
    values, outside = places.astype(np.int64), np.arange(len(places))
    while len(outside):
        values[outside] = walked = _feistel(values[outside], bits[outside], keys[outside])
        outside = outside[walked >= ns[outside]]

    return values


def _feistel(values: Int, bits: Int, keys: NDArray[np.uint64]) -> Int:
    # the right half has the odd bit
    right_bits = (bits + 1) >> 1
    halves = [values >> right_bits, values & ((1 << right_bits) - 1)]
    masks = [(1 << (bits - right_bits)) - 1, (1 << right_bits) - 1]
    turns = np.maximum(_MIN_ROUNDS, 72 // bits)  # fewer bits are mixed by more turns

    # A turn changes one half by a hash of the other, and doing so again would undo it: so no two
    # values become equal. Values with more bits are left alone after their last turn.
    for turn in range(turns.max(initial=0)):
        changed, other = turn % 2, 1 - turn % 2
        keys = keys + GOLDEN
        hashed = (
            splitmix64(keys ^ splitmix64(halves[other].astype(np.uint64) + keys)) >> np.uint64(32)
        ).astype(np.int64)
        halves[changed] = halves[changed] ^ np.where(turn < turns, hashed & masks[changed], 0)

    return halves[0] << right_bits | halves[1]
