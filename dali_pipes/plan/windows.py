"""Window shuffle: which sample is at which place, if a machine holds only a few shards at a time.

A pass has every sample once. It puts all shards in a line, in a new random order, and cuts the line
into lanes of one length, and each lane into windows of whole shards, whose samples are permuted.
A lane counts its samples from 0 through all passes; these numbers are its turns. One pass over five
shards, A to E, with three lanes, and with windows of six samples at most:

    shards    D D D D D D A A A A C C C C C C E E E E B B B B
    windows   [         ] [ ] [ ] [         ] [     ] [     ]
    lanes     0               1               2
    turns     0 1 2 3 4 5 6 7 0 1 2 3 4 5 6 7 0 1 2 3 4 5 6 7

Each global batch takes as many turns of each lane, side by side: the first one of six samples takes
turns 0 and 1 of lane 0, then those of lane 1, then those of lane 2. So it has samples of D, A and
E, and lanes 0 and 1 both read A. Nothing is kept but a few passes.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_pipes.errors import ConfigError
from dali_pipes.plan.draws import Kind, permute

Int = NDArray[np.int64]
_CACHED_PASSES = 4  # passes: a step needs two at most, and the start of the next epoch as many


class LanesError(ConfigError):
    """Lanes or windows that do not fit; the text begins with an option of dp.Windows."""


class Window(NamedTuple):
    """Shards that a lane reads at once. Neighboring windows may serve one batch together."""

    shards: Int  # (N,) their numbers
    # first, last: epoch and step of the first and the last global batch that have samples of it
    first: tuple[int, int]
    last: tuple[int, int]


class _Pass(NamedTuple):
    """All samples once, as a line of shards."""

    shards: Int  # (S,) their numbers, in the order of the line
    # starts, windows, lanes: where each shard, window and lane begins on the line, and where the
    # last one ends
    starts: Int
    windows: Int
    lanes: Int
    turns: Int  # (L,) the turn that each lane begins with


class Lanes:
    """The samples of shards, in lanes and windows: which lane reads which shards when.

    A rank reads some lanes, or shares one with other ranks. If an epoch is as long as the data, it
    is one pass. Otherwise an epoch goes on where the last one stopped.

    Args:
        lengths: (S,) samples of each shard. Samples are numbered by shard.
        sizes: (S,) bytes of each shard.
        count: how many lanes.
        window_bytes: the most bytes that a window's shards have.
        batch: samples of a global batch.
        epoch_size: samples.

    Attributes:
        count, window_bytes: as given.

    Raises:
        LanesError: these shards, batches and epochs cannot be cut into such lanes or windows.
    """

    def __init__(
        self,
        lengths: Int,
        sizes: Int,
        count: int,
        window_bytes: int,
        batch: int,
        epoch_size: int,
        seed: int,
    ):
        self.count, self.window_bytes, self._batch = count, window_bytes, batch
        self._lengths, self._sizes, self._seed = lengths, sizes, seed
        self._epoch_size, self._samples = epoch_size, int(lengths.sum())
        self._epoch_is_pass = epoch_size == self._samples
        self._check()

        self._starts = lengths.cumsum() - lengths  # the number of each shard's first sample
        # (L,) turns of an epoch in each lane, cut as `Plan._places` cuts a step for the ranks
        self._shares = np.diff(epoch_size * np.arange(count + 1) // count)
        self._pass = lru_cache(maxsize=_CACHED_PASSES)(self._cut_pass)

    def _check(self) -> None:
        if self._batch % self.count:
            fits = _divisors(self._batch)
            below = max(fit for fit in fits if fit < self.count)
            above = min((fit for fit in fits if fit > self.count), default=1)
            raise LanesError(
                f"lanes={self.count} do not divide a global batch of {self._batch} images; "
                f"{describe_multiples(self._batch, self.count)} images would do, or "
                f"{below} or {above} lanes"
            )

        if not self._epoch_is_pass and self._epoch_size % self.count:
            sizes_near = describe_multiples(self._epoch_size, self.count)
            raise LanesError(
                f"lanes={self.count} do not divide an epoch of {self._epoch_size} images; "
                f"{sizes_near} images would do"
            )

        if (largest := self._sizes.max()) > self.window_bytes:
            limit, least = f"{self.window_bytes / 1e9:.10g}", f"{largest / 1e9:.10g}"
            raise LanesError(
                f"window_gb={limit} holds no shard of {least} GB; {least} at least would do"
            )

    def check_ranks(self, ranks: int) -> None:
        """Raises a LanesError if this number of ranks would read parts of lanes."""
        if self.count % ranks and ranks % self.count:
            fits = ", ".join(map(str, _divisors(self.count)))
            raise LanesError(
                f"lanes={self.count} cannot be shared by {ranks} ranks; {fits} ranks would do, or "
                f"a multiple of {self.count}"
            )

    def lanes_of(self, rank: int, ranks: int) -> range:
        """The lanes that a rank reads; several ranks may read one lane."""
        return range(rank * self.count // ranks, ((rank + 1) * self.count - 1) // ranks + 1)

    def windows(self, lane: int, epoch: int = 0, step: int = 0) -> Iterator[Window]:
        """Endless windows of a lane; the first one holds the lane's next sample at this step."""
        share, each_step = int(self._shares[lane]), self._batch // self.count
        # an epoch with fewer samples than lanes leaves some lanes empty
        if not share:
            return

        first_turn = epoch * share + min(step * each_step, share)
        for number in count(int(self._pass_of(np.array(lane), np.array(first_turn)))):
            one_pass = self._pass(number)
            # the lane's first window, and the one after its last: windows end where lanes do
            first, end = np.searchsorted(one_pass.windows, one_pass.lanes[lane : lane + 2])

            for bounds in pairwise(one_pass.windows[first : end + 1]):
                turn, after = (
                    int(bound - one_pass.lanes[lane] + one_pass.turns[lane]) for bound in bounds
                )
                # windows before `first_turn` have been read
                if after > first_turn:
                    # a lane may begin and end within a shard, which the next lane then reads too
                    shards = one_pass.shards[
                        _shard_at(one_pass, bounds[0]) : _shard_at(one_pass, bounds[1] - 1) + 1
                    ]
                    begin, last = (
                        (each // share, each % share // each_step) for each in (turn, after - 1)
                    )
                    yield Window(shards, begin, last)

    def at(self, places: Int) -> Int:
        """The samples at these places, which count through all epochs. Samples are numbered by
        shard.
        """
        lane, turn = self._turns_at(places)
        numbers, samples = self._pass_of(lane, turn), np.empty(len(turn), np.int64)

        for number in np.unique(numbers).tolist():
            here, one_pass = numbers == number, self._pass(number)
            on_line = one_pass.lanes[lane[here]] + turn[here] - one_pass.turns[lane[here]]

            # each is exchanged for another one of the same window
            window = np.searchsorted(one_pass.windows, on_line, side="right") - 1
            start, end = one_pass.windows[window], one_pass.windows[window + 1]
            on_line = start + permute(
                end - start, on_line - start, self._seed, Kind.SHARD_WINDOW, number, window
            )

            # from the line to the numbers of the samples, which count shard by shard
            shard = _shard_at(one_pass, on_line)
            samples[here] = self._starts[one_pass.shards[shard]] + on_line - one_pass.starts[shard]

        return samples

    def _turns_at(self, places: Int) -> tuple[Int, Int]:
        """The lane of each place, and which of its turns."""
        epoch, within = np.divmod(places, self._epoch_size)
        step, within = np.divmod(within, self._batch)

        # an epoch's last batch may be smaller; its lanes are cut in the same proportion
        size = np.minimum(self._batch, self._epoch_size - step * self._batch)
        # lane l begins at size * l // count; this finds the lane of a place
        lane = ((within + 1) * self.count - 1) // size

        turn = (
            epoch * self._shares[lane]
            + step * (self._batch // self.count)
            + within
            - size * lane // self.count
        )
        return lane, turn

    def _pass_of(self, lane: Int, turn: Int) -> Int:
        """The number of the pass that these turns of the lanes belong to."""
        if self._epoch_is_pass:
            return turn // self._shares[lane]
        # the lanes get the samples of all passes in turn
        return (turn * self.count + lane) // self._samples

    def _first_turns(self, number: int) -> Int:
        """(L,) the turn with which each lane begins a pass."""
        if self._epoch_is_pass:
            return number * self._shares
        # the first turn t whose t * count + lane is at or after the pass's first sample
        return -((np.arange(self.count) - number * self._samples) // self.count)

    def _cut_pass(self, number: int) -> _Pass:
        places = np.arange(len(self._lengths))
        shards = permute(len(places), places, self._seed, Kind.SHARDS, number)
        starts, ends = (
            np.append(0, counts[shards].cumsum()) for counts in (self._lengths, self._sizes)
        )

        # a lane's part of the pass ends where its turns of the next pass begin
        turns = self._first_turns(number)
        lanes = np.append(0, (self._first_turns(number + 1) - turns).cumsum())
        windows = _cut_windows(starts, ends, lanes, self.window_bytes)
        return _Pass(shards, starts, windows, lanes, turns)


def describe_multiples(number: int, divisor: int) -> str:
    """The multiples of `divisor` next to a number, for messages."""
    below = number // divisor * divisor
    return f"{below} or {below + divisor}" if below else str(divisor)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _shard_at(one_pass: _Pass, on_line: Int) -> Int:
    return np.searchsorted(one_pass.starts, on_line, side="right") - 1


def _cut_windows(starts: Int, ends: Int, lanes: Int, limit: int) -> Int:
    """Where the windows begin on the line, and where the last one ends.

    Each lane is filled with as many shards as fit into a window, and its last two windows are made
    about the same size.

    Args:
        starts, ends: (S + 1,) samples and bytes before each shard.
        lanes: where each lane begins, and the last one ends.
        limit: bytes of a window.
    """
    # for a window that begins with each shard: the first shard that does not fit
    reach = (np.searchsorted(ends, ends[:-1] + limit, side="right") - 1).tolist()
    # the shard in which each lane begins, and the first one that begins after it
    firsts, stops = (
        np.searchsorted(starts, lanes[:-1], side="right") - 1,
        np.searchsorted(starts, lanes[1:]),
    )

    cuts = [0]
    for shard, stop, end in zip(firsts.tolist(), stops.tolist(), lanes[1:].tolist(), strict=True):
        while end > cuts[-1]:
            after = reach[shard]
            # two windows are left: cut them in the middle
            if after < stop <= reach[after]:
                after = min(after, int(np.searchsorted(ends, (ends[shard] + ends[stop]) / 2)))
            cuts.append(int(starts[after]) if after < stop else end)
            shard = after

    return np.array(cuts)
