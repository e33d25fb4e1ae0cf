"""Which sample is at which place: pure functions of (seed, place), for any number of ranks.

A place counts samples through all epochs. `Groups` orders the images of classes or sources, each in
permutations of its own; `Shares` divides a mixture among its sources; `draw_by_weight` draws by
weights. A sampling makes an `Order` of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_pipes.plan.draws import HIGH, Kind, permute, philox4x32
from dali_pipes.plan.windows import Lanes

Int = NDArray[np.int64]
_SUBSTITUTES_PER_TRY = 64  # images that are looked at together to replace a bad one
PERIOD = 256  # windows after which a mixture's shares come out exactly


@dataclass(frozen=True, slots=True)
class Order:
    """The samples of all epochs, one after the other.

    Each epoch goes on where the last one stopped.
    """

    epoch_size: int  # samples of one epoch
    at: Callable[[Int], Int]  # the ids at these places, counted through all epochs
    # whether an epoch may hold a sample more than once, so that its random numbers are keyed by its
    # place
    repeats: bool = True
    # as `at`, with bad samples replaced by others of their group; None: a bad sample is replaced by
    # another one of its batch
    good: Callable[[Int, Int], Int] | None = None
    lanes: Lanes | None = None  # who reads which shards when; None: any sample may come at any time

    def ids(self, epoch: int, places: Int, bad: Int | None = None) -> Int:
        """The samples at these places of an epoch; `bad` are ids to replace."""
        through = epoch * self.epoch_size + places
        return (
            self.good(through, bad)
            if self.good and bad is not None and len(bad)
            else self.at(through)
        )


class GroupPosition(NamedTuple):
    """Where samples are in their groups, each (N,)."""

    group: Int  # a class or a source
    number: Int  # of the permutation of the group's images
    position: Int  # in that permutation


class Groups:
    """The images of each class or source that has any, in permutations of their own.

    `labels`, (n,), are the group of each image.
    """

    def __init__(self, labels: Int, seed: int):
        # groups are numbered anew without the empty ones, in which nothing could be drawn
        sizes = np.bincount(labels)
        self._members, self._seed = np.argsort(labels, kind="stable"), seed
        self.sizes = sizes[sizes > 0]
        self._starts = self.sizes.cumsum() - self.sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def images(self, location: GroupPosition) -> Int:
        group, number, position = location
        within = permute(self.sizes[group], position, self._seed, Kind.MEMBERS, number, group)
        return self._members[self._starts[group] + within]

    def locate_turn(self, group: Int, turn: Int) -> GroupPosition:
        """The positions of turns: every image of the group comes before any comes again."""
        return GroupPosition(group, *np.divmod(turn, self.sizes[group]))

    def order(self, epoch_size: int, locate: Callable[[Int], GroupPosition], apart: int) -> Order:
        """The order of samples whose positions in the groups `locate` gives.

        Args:
            locate: gives the positions at places counted through all epochs.
            apart: how many samples of a group are side by side in a batch, so that a sample `apart`
                later is not in the same batch.
        """

        def good(places: Int, bad: Int) -> Int:
            location = locate(places)
            ids = self.images(location)

            for place in np.flatnonzero(np.isin(ids, bad)):
                ids[place] = self._substitute(
                    GroupPosition(*(column[place] for column in location)),
                    apart,
                    bad,
                    int(ids[place]),
                )

            return ids

        return Order(epoch_size, lambda places: self.images(locate(places)), True, good)

    def _substitute(self, location: GroupPosition, apart: int, bad: Int, own: int) -> int:
        """The first of the group's other images that is not bad; `own` if all are bad."""
        group, number, position = map(int, location)
        positions = _list_substitutes(position, int(self.sizes[group]), apart)
        while len(some := np.fromiter(islice(positions, _SUBSTITUTES_PER_TRY), np.int64)):
            images = self.images(
                GroupPosition(np.full(len(some), group), np.full(len(some), number), some)
            )
            usable = images[~np.isin(images, bad)]
            if len(usable):
                return int(usable[0])
        return own


def _list_substitutes(position: int, size: int, apart: int) -> Iterator[int]:
    """The positions of a group in the order in which they are tried as substitutes.

    First come those that no batch with this position holds and that no other position of the batch
    begins with, then others that the batch does not hold, then all.
    """
    within = position % apart
    first, left = position - within, max(size - apart, 0)

    # multiples of `apart` later, then earlier: two samples of a batch never share such a position
    yield from range(position + apart, size, apart)
    yield from range(within, first, apart)

    # then all outside of this block of `apart`; each position begins at another one
    yield from ((first + apart + (within + shift) % left) % size for shift in range(left))
    # at last also what the batch holds
    yield from range(size)


def draw_by_weight(weights: NDArray[np.float64], seed: int) -> Callable[[Int], Int]:
    """A function that draws samples by their weights, each place independently."""
    sums, last = weights.cumsum(), int(np.flatnonzero(weights)[-1])

    def at(places: Int) -> Int:
        high, low, *_ = philox4x32(
            (places & 0xFFFFFFFF, 0, 0, places >> 32 << HIGH | Kind.WEIGHTED), seed
        )
        # from 64 random bits; 32 are too coarse for the weights of many images
        share = (high * np.float64(2.0**32) + low) * np.float64(2.0**-64)
        # "right" passes over images of weight 0. A share that is rounded up to 1 would be beyond
        # the end: it takes the last image that has a weight.
        return np.minimum(np.searchsorted(sums, share * sums[-1], side="right"), last)

    return at


class Shares:
    """How many samples of each source are in each window of samples.

    It is the share of each source, rounded up or down so that it is right in the long run
    (systematic sampling: Madow and Madow, Annals of Mathematical Statistics 15, 1944).

    Attributes:
        window: how many samples a window has.
    """

    def __init__(self, shares: NDArray[np.float64], window: int, seed: int):
        wanted = shares / shares.sum() * window
        # the fractions of all sources side by side, in 1/PERIOD of a sample; their end is set to a
        # whole number of samples, as rounding may have moved it
        ends = np.round((wanted - np.floor(wanted)).cumsum() * PERIOD).astype(np.int64)
        ends[-1] = round(ends[-1] / PERIOD) * PERIOD

        # one point for each sample that rounding up adds in a period; an odd factor near the golden
        # section (159 / 256) spreads them over the period
        points = np.arange(ends[-1])
        turn = points % PERIOD * 159 % PERIOD
        added = np.zeros((PERIOD, len(shares)), np.int64)
        np.add.at(added, (turn, np.searchsorted(ends, points, side="right")), 1)

        self._counts = np.floor(wanted).astype(np.int64) + added
        self._before = self._counts.cumsum(axis=0) - self._counts
        self.in_period, self.most = self._counts.sum(axis=0), self._counts.max(axis=0)
        self.window = window
        self._order = lru_cache(maxsize=8)(partial(self._window, seed))

    def turns(self, places: Int) -> tuple[Int, Int]:
        """The source at each place, and the sample's number in that source.

        Within a window the sources are in a random order.
        """
        numbers, within = np.divmod(places, self.window)
        source, turn = np.empty((2, len(places)), np.int64)
        # window by window, since each is ordered as a whole
        by_window = np.argsort(numbers, kind="stable")
        windows, first = np.unique(numbers[by_window], return_index=True)
        for number, here in zip(windows.tolist(), np.split(by_window, first[1:]), strict=False):
            source[here], turn[here] = (column[within[here]] for column in self._order(number))
        return source, turn

    def _window(self, seed: int, number: int) -> tuple[Int, Int]:
        period, row = divmod(number, PERIOD)
        counts = self._counts[row]
        # (S,) how many samples of each source come before this window
        first = period * self.in_period + self._before[row]
        # a random number for each place of the window; Philox gives four at a time
        fours = np.arange(-(-self.window // 4))
        keys = philox4x32(
            (fours, number & 0xFFFFFFFF, 0, number >> 32 << HIGH | Kind.WINDOW), seed
        ).ravel()[: self.window]

        source = np.repeat(np.arange(len(counts)), counts)[np.argsort(keys, kind="stable")]
        # a source's samples are numbered from `first` on, in the order in which they come
        by_source, turn = np.argsort(source, kind="stable"), np.empty(self.window, np.int64)
        turn[by_source] = np.arange(self.window) - np.repeat(
            counts.cumsum() - counts - first, counts
        )
        return source, turn
