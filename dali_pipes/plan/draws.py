"""Counter-based random numbers: a counter gives the same number on any machine, in any order.

Nothing is stored. The generator is Philox4x32-10 from Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3" (SC 2011), on NumPy arrays. `Draws` has the numbers of samples, `BatchDraws` those
of a batch. Permutations are whole ones, or keyed bijections that take no memory, whatever their
size.
"""

from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dali_pipes.checks import LARGEST_SEED
from dali_pipes.options import check_arguments
from dali_pipes.system.hashing import GOLDEN, splitmix64

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WORD, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_ROUNDS = 10
LARGEST_EPOCH = 2**32 - 1  # an epoch is one word of a counter

# Numbers of the draws of one sample in one epoch. A number is never reused for something else.
FLIP_DRAW = 0
SHIFT_DRAW = 1
SCALE_DRAW = 2
INTERPOLATION_DRAW = 3
CROP_DRAW = 16  # and the nine after it: the attempts of a random resized crop
CROP_TRIES = 10
AUGMENT_DRAW = 32  # and the ones after it: the policies of `augment`, `STEP_DRAWS` for each
FUNCTION_DRAW = 2**13  # the functions of `augment`
BEFORE_DRAW = 2**14  # the steps of `before`, `STEP_DRAWS` for each
BOXES_DRAW = 2**15  # and all after it: regions that are tried around boxes
STEP_DRAWS = 16

Int = NDArray[np.int64]
_MIN_ROUNDS = 6


def philox4x32(
    counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike], key: int
) -> NDArray[np.uint32]:
    """Four random 32-bit words for every counter.

    Args:
        counter: four words below 2**32, arrays or scalars that broadcast together.
        key: 64 bits; another key gives another, independent stream.

    Returns:
        uint32 of shape (4, …): the words, then the broadcast shape of the counters.
    """
    shape = np.broadcast_shapes(*map(np.shape, counter))
    words = np.empty((4, *shape), np.uint64)
    for at, word in enumerate(counter):
        words[at] = word

    # Words of 32 bits in 64, and each operation writes into memory that is there: for the samples
    # of a batch a call of NumPy costs more than its numbers, most of all one that converts them.
    first, first_added, second, second_added = words.reshape(4, -1)
    first_product, second_product = np.empty((2, first.size), np.uint64)
    for first_key, second_key in _round_keys(key):
        np.multiply(first, _MULTIPLIERS[0], out=first_product)
        np.multiply(second, _MULTIPLIERS[1], out=second_product)
        # the high halves of the products, exchanged; then the low ones, for the next round
        np.right_shift(second_product, _WORD, out=first)
        first ^= first_added
        first ^= first_key
        np.right_shift(first_product, _WORD, out=second)
        second ^= second_added
        second ^= second_key
        np.bitwise_and(second_product, _LOW, out=first_added)
        np.bitwise_and(first_product, _LOW, out=second_added)

    return words.astype(np.uint32)


@lru_cache(maxsize=8)
def _round_keys(key: int) -> list[tuple[np.uint64, np.uint64]]:
    """Both words of each round's key."""
    low, high = key & 0xFFFFFFFF, key >> 32
    return [
        (
            np.uint64(low + turn * 0x9E3779B9 & 0xFFFFFFFF),
            np.uint64(high + turn * 0xBB67AE85 & 0xFFFFFFFF),
        )
        for turn in range(_ROUNDS)
    ]


class Kind(IntEnum):
    """What random numbers are for."""

    SAMPLE = 0  # a sample's crop, flip and augmentation, by its id
    BATCH = 1  # what is done to a batch, by the place of its first sample in the epoch
    PLACE = 2  # as SAMPLE, where an epoch may hold a sample twice, by its place in the epoch
    IMAGES = 3  # a permutation of all images
    GROUPS = 4  # of all classes
    MEMBERS = 5  # of the images of one class or source
    WINDOW = 6  # of the places of a batch, or of another number of samples
    WEIGHTED = 7  # a draw by weights, by its place in all epochs
    SHARDS = 8  # a permutation of all shards
    SHARD_WINDOW = 9  # of the samples of one window of shards


# The counter of every random number, word by word. The key is the seed; only whole permutations
# come from NumPy (`random_permutation`).
#
#                           word 0                          word 1           word 2
#   SAMPLE, BATCH, PLACE    bits 31 … 0 of the id or place  epoch            view (31 … 16),
#                                                                            draw (15 … 0)
#   IMAGES, GROUPS,         0; MEMBERS: the class or        number of the    0
#   MEMBERS, SHARDS,        source; SHARD_WINDOW: the       permutation,
#   SHARD_WINDOW            window                          bits 31 … 0
#   WINDOW                  which four of its places        its number,      0
#                                                           bits 31 … 0
#   WEIGHTED                bits 31 … 0 of the place        0                0
#
# Word 3 has bits 55 … 32 of the id, place or number (31 … 8), and the kind (7 … 0).
VIEW, HIGH = 16, 8  # how far left the view in word 2, and bits 55 … 32 in word 3, are shifted


class Draws:
    """The random numbers of some samples in one epoch, keyed by (seed, epoch, number, draw, view).

    Args:
        numbers: (N,) ids of samples, or their places in the epoch, below 2**56.
        kind: which of the two: `SAMPLE` or `PLACE`.
        view: the number of the view, if an image has several.
    """

    def __init__(
        self,
        seed: int,
        epoch: int,
        numbers: NDArray[np.int64],
        kind: Kind = Kind.SAMPLE,
        view: int = 0,
    ):
        self._key, self._epoch, self._view = seed, epoch, view << VIEW
        self._low, high = numbers.astype(np.uint32), numbers >> 32
        # numbers below 2**32 have no high bits, so one word serves all samples
        self._last = (
            (high << HIGH | kind).astype(np.uint32) if high.any() else np.full(1, kind, np.uint32)
        )

    def uniform(
        self, draw: ArrayLike, subset: Int | NDArray[np.bool_] | slice = slice(None)
    ) -> NDArray[np.float64]:
        """Four numbers in [0, 1) for each sample of `subset`.

        They are float64 of shape (4, N), or (4, N, D) for an array of D draws.
        """
        several = [1] * np.ndim(draw)
        low = self._low[subset].reshape(-1, *several)
        last = (self._last if len(self._last) == 1 else self._last[subset]).reshape(-1, *several)
        return philox4x32(
            (low, self._epoch, np.asarray(draw, np.int64) | self._view, last), self._key
        ) * np.float64(2.0**-32)


class BatchDraws:
    """The random numbers of one batch.

    They are keyed by (seed, epoch, place of its first sample in the epoch's order, draw).
    """

    @check_arguments(seed=(0, LARGEST_SEED), epoch=(0, LARGEST_EPOCH), place=(0, 2**56 - 1))
    def __init__(self, seed: int, epoch: int, place: int):
        self._key, self._epoch, self._place = seed, epoch, place

    def uniform(self, draw: ArrayLike) -> NDArray[np.float64]:
        """Four numbers in [0, 1): float64 of shape (4,), or (4, D) for an array of D draws.

        Draws from 16 on are the user's.
        """
        last = self._place >> 32 << HIGH | Kind.BATCH
        return philox4x32(
            (self._place & 0xFFFFFFFF, self._epoch, draw, last), self._key
        ) * np.float64(2.0**-32)


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
