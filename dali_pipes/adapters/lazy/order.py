"""Which samples, in which order: the program's own samplers.

Without a seed they run as ever. With one, the order of an epoch depends on (seed, epoch) alone:
PyTorch's own samplers draw from a generator that is seeded for it, others run while all generators
are. The order of all ranks is cut as DistributedSampler does, from the place on where a resume
begins, so that it may go on with another number of ranks.

Each batch of indices is sent to a worker with its place in the epoch (`Ask`), by which its random
numbers are seeded.
"""

import copy
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from dali_pipes.adapters.lazy.memory import Kept, Memory
from dali_pipes.adapters.lazy.random_numbers import Numbers, own_numbers, seed_of
from dali_pipes.errors import ConfigError
from dali_pipes.loader.ranks import choose_rank
from dali_pipes.plan.plan import Rank

# exactly these: a subclass may do something else
_KNOWN = (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
_AHEAD = 64  # batches that a sampler of the program's own is run ahead


class Ask(NamedTuple):
    """A batch that is wanted of a worker.

    Attributes:
        epoch: from 0.
        first: the place of its first sample in the epoch, over all ranks.
        step: from one place to the next: the number of ranks.
        indices: for the data set.
    """

    epoch: int
    first: int
    step: int
    indices: list[Any]

    @property
    def places(self) -> range:
        return range(self.first, self.first + self.step * len(self.indices), self.step)


class SampleOrder:
    """Takes the place of a DataLoader's batch sampler, or of its sampler if it makes no batches.

    Args:
        rank: this process's part; None: as the sampler says, and else everything.

    Attributes:
        inner: the sampler whose indices make batches in their order; None: the program's own batch
            sampler makes them otherwise.
        rank: the part that it is.
        is_known: whether the order of all ranks can be made without running code of the program's.
        has_part: whether the program's sampler gives only the part of its rank.
        name: of the sampler's class.
        epoch, delivered: where the next `iter()` begins: after so many samples of all ranks.

    Raises:
        ConfigError: ranks cannot share this order.
    """

    def __init__(self, loader: DataLoader[Any], seed: int | None, rank: Rank | None):
        self.seed, self.epoch, self.delivered = seed, 0, 0
        self.is_batched = loader.batch_sampler is not None
        self._own: Any = loader.batch_sampler if self.is_batched else loader.sampler

        # the samples' own order; None: of what makes batches nothing else is known
        self.inner: Any = None if self.is_batched else self._own
        self._size, self._drops = 1, False
        if type(self._own) is BatchSampler:
            self.inner = self._own.sampler
            self._size, self._drops = self._own.batch_size, self._own.drop_last
        self.is_known = type(self.inner) in _KNOWN

        self.name = type(self._own if self.inner is None else self.inner).__name__
        self.has_part, self.rank = self._choose_rank(rank)
        self._numbers = None
        if seed is not None and not self.is_known:
            self._numbers = Numbers(True, sampler=self._own)
        self._ahead: deque[Any] = deque()
        self._runs: Iterator[Any] = iter(())
        self._states: Any = None  # of all generators, where the sampler was left
        # what it counts by itself, such as epochs, and had counted before the epoch that runs
        self._memory = None if self.is_known else Memory(sampler=self._own)
        self._before: tuple[int, Kept] | None = None

    def _choose_rank(self, rank: Rank | None) -> tuple[bool, Rank]:
        """Whether the sampler itself gives a part of the order only, and which."""
        says = _rank_of(self._own if self.inner is None else self.inner)
        if says is not None:
            if rank not in (None, says):
                raise ConfigError(
                    f"rank is {rank}, but the program's {self.name} has rank {says.index} of "
                    f"{says.count}; leave out rank=, or make the sampler for that rank"
                )
            return not self.is_known, says

        if rank is None:
            if self.seed is None or self.is_known:
                return False, choose_rank(None) if self.seed is not None else Rank()
            return True, find_rank()  # it may ask for it itself
        if rank.count > 1 and self.inner is None:
            raise ConfigError(
                f"{self.name} makes batches of its own, which cannot be divided among "
                f"{rank.count} ranks; give each rank a batch sampler of its own, and leave out "
                "rank="
            )
        if rank.count > 1 and self.seed is None and not isinstance(self.inner, SequentialSampler):
            raise ConfigError(
                f"rank= needs seed=: each of {rank.count} processes would draw another order of "
                f"{self.name}; give all ranks the same seed="
            )
        return False, rank

    def __len__(self) -> int:
        """Batches of one epoch on this rank; samples, if there are no batches.

        Raises:
            TypeError: the program's sampler has no length.
        """
        if self.inner is None or self.has_part or self.rank == Rank():
            return len(self._own)
        return self._count(0)

    def left(self) -> int | None:
        """Batches that the next `iter()` gives; None: it is not known."""
        try:
            if self.inner is None or self.has_part:
                return None if self.delivered else len(self._own)
            return self._count(self.delivered)
        except Exception:  # it has no length, or none before it has begun
            return None

    def _count(self, delivered: int) -> int:
        whole = len(_alone(self.inner, None, 0) if self.is_known else self.inner) - delivered
        mine = whole // self.rank.count if self._drops_rest else -(-whole // self.rank.count)
        return mine // self._size if self._drops else -(-mine // self._size)

    @property
    def batch_size(self) -> int | None:
        """Samples of a full batch; None: it is not known."""
        return self._size if self.inner is not None and self.is_batched else None

    def describe(self) -> str:
        """What decides the order, in a line."""
        names = ("replacement", "num_samples", "shuffle", "seed") if self.is_known else ()
        own = {name: getattr(self.inner, name) for name in names if hasattr(self.inner, name)}
        if isinstance(self.inner, DistributedSampler):
            own.pop("num_samples")  # of one rank
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in own.items())})"

    @property
    def _drops_rest(self) -> bool:
        """Whether samples are left out that are not enough for all ranks; else some come twice."""
        return isinstance(self.inner, DistributedSampler) and self.inner.drop_last

    def __getattr__(self, name: str) -> Any:
        """What a DataLoader of another class asks of the program's sampler."""
        if name == "_own":
            raise AttributeError(name)
        return getattr(self._own, name)

    def count_at(self, epoch: int, samples: int) -> dict[str, dict[str, Any]]:
        """What the program's own sampler had counted before it gave the order of this epoch, such
        as a number of epochs: a resume begins with it.
        """
        if self._memory is None:
            return {}
        if self._before and self._before[0] == epoch:
            return self._before[1].numbers
        if not samples:
            self.run_ahead()  # to the end of an epoch, where it may count as well
        return self._memory.read().numbers

    def go_on_from(self, count: dict[str, dict[str, Any]]) -> None:
        """
        Args:
            count: as of `count_at`.

        Raises:
            ConfigError: it is another sampler's.
        """
        if self._memory is None:
            return
        try:
            self._memory.restore(Kept(count, None))
        except RuntimeError:
            raise ConfigError(
                f"the state counts {', '.join(count)}, which {self.name} has not; resume with the "
                "sampler that the state was made with"
            ) from None

    def __iter__(self) -> Iterator[Ask]:
        if self._memory is not None:
            self._before = self.epoch, self._memory.read()
        is_own_part = self.has_part or self.rank == Rank()
        if self.seed is None and (is_own_part or type(self.inner) is DistributedSampler):
            return self._as_ever(iter(self._own), self.epoch)
        if self.inner is None or self.has_part:
            return self._run(self.epoch, self.delivered)
        return self._cut(self.epoch, self.delivered)

    def _as_ever(self, chosen: Iterator[Any], epoch: int) -> Iterator[Ask]:
        """The program's order. It is asked for one batch when that is wanted, and no earlier."""
        place = self.rank.index
        for each in chosen:
            indices = each if self.is_batched else [each]
            if not hasattr(indices, "__len__"):
                indices = list(indices)
            yield Ask(epoch, place, self.rank.count, indices)
            place += self.rank.count * len(indices)

    def _run(self, epoch: int, delivered: int) -> Iterator[Ask]:
        """What a sampler gives that can only be run, from a place on.

        Raises:
            ConfigError: this place is none between two of its batches.
        """
        place = 0
        for each in self._run_seeded(self._own, epoch):
            indices = list(each) if self.is_batched else [each]
            if place >= delivered:
                first = place + self.rank.index
                yield Ask(epoch, first, self.rank.count, indices)
            place += len(indices) * self.rank.count
            if place - len(indices) * self.rank.count < delivered < place:
                raise ConfigError(
                    f"the state has {delivered} samples delivered, but {type(self._own).__name__} "
                    f"now has a batch from {place - len(indices) * self.rank.count} to {place}; "
                    "resume with the sampler that the state was made with"
                )

    def _cut(self, epoch: int, delivered: int) -> Iterator[Ask]:
        """This rank's part of an order of all, from a place on."""
        if self.is_known:
            whole = iter(_alone(self.inner, self.seed, epoch))
        else:
            whole = self._run_seeded(self.inner, epoch)

        mine = self._part(whole, delivered)
        first = delivered + self.rank.index
        while indices := list(itertools.islice(mine, self._size)):
            if self._drops and len(indices) < self._size:
                return
            yield Ask(epoch, first, self.rank.count, indices)
            first += self.rank.count * len(indices)

    def _part(self, whole: Iterator[Any], delivered: int) -> Iterator[Any]:
        """Every nth sample. What is missing for all ranks to have as many comes from the start, as
        DistributedSampler takes it, or the rest is left out.
        """
        count = self.rank.count
        if count == 1:
            yield from itertools.islice(whole, delivered, None)
            return

        start = list(itertools.islice(whole, max(delivered, count)))
        left = itertools.chain(start[delivered:], whole)
        while block := list(itertools.islice(left, count)):
            if len(block) < count:
                if self._drops_rest:
                    return
                block += itertools.islice(itertools.cycle(start), count - len(block))
            yield block[self.rank.index]

    def _run_seeded(self, sampler: Iterable[Any], epoch: int) -> Iterator[Any]:
        """Runs a sampler of the program's own, with numbers that depend on (seed, epoch)."""
        assert self._numbers is not None
        with own_numbers():
            self._numbers.seed(self.seed, "order", epoch)
            self._runs, self._states = iter(sampler), self._numbers.states()
        self._ahead.clear()
        self.run_ahead()
        while self._ahead:
            yield self._ahead.popleft()
            if not self._ahead:
                self.run_ahead()

    def run_ahead(self) -> None:
        """Runs such a sampler for some batches. The loader calls this in the thread that trains:
        in another one, its seeds would come between the numbers that the training draws.
        """
        most = _AHEAD if self.inner is None or self.has_part else _AHEAD * self._size
        if self._numbers is None or self._states is None or len(self._ahead) > most // 2:
            return
        with own_numbers():
            self._numbers.restore(self._states)
            self._ahead.extend(itertools.islice(self._runs, most))
            self._states = self._numbers.states()


def _alone(sampler: Any, seed: int | None, epoch: int) -> Any:
    """A copy of one of PyTorch's samplers, which gives the order of all ranks."""
    if isinstance(sampler, DistributedSampler):  # its order depends on its own seed and the epoch
        alone: DistributedSampler[Any] = DistributedSampler(
            sampler.dataset, 1, 0, sampler.shuffle, sampler.seed, sampler.drop_last
        )
        alone.set_epoch(epoch)
        return alone
    made = copy.copy(sampler)
    if hasattr(made, "generator") and seed is not None:
        made.generator = torch.Generator("cpu").manual_seed(seed_of(seed, "order", epoch))
    return made


def _rank_of(sampler: Any) -> Rank | None:
    """The rank that a sampler was made for, such as a DistributedSampler or one of timm's."""
    rank, count = getattr(sampler, "rank", None), getattr(sampler, "num_replicas", None)
    return Rank(rank, count) if isinstance(rank, int) and isinstance(count, int) else None


def find_rank() -> Rank:
    """The rank of this process in a run of several, as torch.distributed or the launcher says."""
    if dist.is_available() and dist.is_initialized():
        return Rank(dist.get_rank(), dist.get_world_size())
    return Rank.from_env()
