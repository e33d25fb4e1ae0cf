"""Counter-based random numbers: the same counter gives the same number, on any machine, in any order, with nothing stored.

Philox4x32-10 from Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), on NumPy arrays.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], "<u4")
_WEYL = np.array([[0x9E3779B9], [0xBB67AE85]], "<u4")
_ROUNDS = 10


def philox4x32(counter: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike], key: int) -> NDArray[np.uint32]:
    """Four random 32-bit words for every counter.

    Args:
        counter: four words below 2**32, arrays or scalars that broadcast together.
        key: 64 bits; another key is another, independent stream.

    Returns:
        uint32 of shape (4, …), the broadcast shape of the counters after the words.
    """
    words = np.empty((4, *np.broadcast_shapes(*map(np.shape, counter))), "<u4")
    for at, word in enumerate(counter):
        words[at] = word
    multiplied, added = words[0::2].reshape(2, -1), words[1::2].reshape(2, -1)
    round_key = np.array([[key & 0xFFFFFFFF], [key >> 32]], "<u4")
    for _ in range(_ROUNDS):
        # both products of a round at once; their halves are views, so a round is three passes over the data
        halves = np.multiply(multiplied, _MULTIPLIERS, dtype="<u8").view("<u4").reshape(2, -1, 2)[::-1]
        multiplied, added = halves[..., 1] ^ added ^ round_key, halves[..., 0]
        round_key = round_key + _WEYL
    return np.stack([multiplied[0], added[0], multiplied[1], added[1]]).reshape(words.shape)


class Draws:
    """The random numbers of some samples in one epoch, keyed by (seed, epoch, sample id, draw)."""

    def __init__(self, seed: int, epoch: int, ids: NDArray[np.int64]):
        self._key, self._epoch, self._ids = seed, epoch, ids.astype(np.uint32)

    def uniform(self, draw: ArrayLike, subset: NDArray[np.bool_] | slice = slice(None)) -> NDArray[np.float64]:
        """Four numbers in [0, 1) for each sample of `subset`, and for each draw where `draw` is an array.

        Returns:
            float64 of shape (4, N), or (4, N, D) for D draws.
        """
        ids = self._ids[subset].reshape(-1, *[1] * np.ndim(draw))
        return philox4x32((ids, self._epoch, draw, 0), self._key) * np.float64(2.0**-32)


class BatchDraws:
    """The random numbers of one batch, keyed by (seed, epoch, place of its first sample in the epoch's order, draw).

    The counter's fourth word separates them from those of the samples.
    """

    def __init__(self, seed: int, epoch: int, place: int):
        self._key, self._epoch, self._place = seed, epoch, place

    def uniform(self, draw: ArrayLike) -> NDArray[np.float64]:
        """Four numbers in [0, 1), for each draw where `draw` is an array. This package never uses draws from 16 on.

        Returns:
            float64 of shape (4,), or (4, D) for D draws.
        """
        return philox4x32((self._place, self._epoch, draw, 1), self._key) * np.float64(2.0**-32)
