"""What a user iterates in place of a DataLoader: `LazyLoader`.

    DataLoader's workers ──▶ parcels ──▶ pictures are made ──▶ collated, if that was left ──▶ batch
   program.py, parcels.py               compiler/executor.py

LazyLoader      keeps its place among the epochs, and what lives as long as it does: the DataLoader
                with the program's workers, and the executor with its backends
_LazyEpoch      the batches of one epoch; it ends their workers when it is dropped

Without a seed every random number is drawn as the program draws it, and batches are equal to those
of the old loader. With one, they depend on (seed, epoch, place in the epoch), whatever the number
of workers and ranks, and a resume goes on in the middle of an epoch.
"""

import copy
import os
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, IterDataPipe
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dali_pipes.adapters.lazy.chosen import ChosenMaker
from dali_pipes.adapters.lazy.compiler.executor import Executor, LazyWork
from dali_pipes.adapters.lazy.explain import Account, explain
from dali_pipes.adapters.lazy.finishing import BatchFinisher
from dali_pipes.adapters.lazy.found import WaitingParts
from dali_pipes.adapters.lazy.order import SampleOrder
from dali_pipes.adapters.lazy.parcels import Parcel, Parcels, end_workers
from dali_pipes.adapters.lazy.patching import patched
from dali_pipes.adapters.lazy.program import LazyProgram
from dali_pipes.adapters.lazy.resume import facts_of, make_state, read_state
from dali_pipes.adapters.lazy.streams import PipeStream, Stream
from dali_pipes.backends.auto.config import AutoConfig
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.errors import ConfigError
from dali_pipes.loader.mistakes import RefusesAttributes
from dali_pipes.options import check_arguments
from dali_pipes.plan.draws import LARGEST_EPOCH
from dali_pipes.plan.plan import Rank

AHEAD = 8  # batches that may be read before they are needed

# changes the batches of an epoch, as timm's PrefetchLoader does; it may take one ahead
Change = Callable[["Delivery", Iterator[Any]], Iterator[Any]]


class LazyPosition(NamedTuple):
    """Where a loader is.

    Attributes:
        epoch: of the next batch.
        samples: how many of it all ranks have delivered.
        is_abandoned: whether the next `iter()` leaves out the rest of this epoch.
    """

    epoch: int
    samples: int
    is_abandoned: bool


class LazyLoader(RefusesAttributes):
    """Batches of a program, epoch after epoch: each `iter()` is the next one, and leaving a loop
    early abandons it. The program's own DataLoader stays as it is.

    One thread at a time uses it, and one epoch at a time is delivered. It belongs to the process
    that made it, and ends with its last reference.

    Args:
        loader: the program's.
        config: of the backend that makes pictures; None: they are made as noted, bit by bit.
        seed, check, rank, on_bad_sample: as of `from_torch`.
        device: where all tensors of a batch arrive; None: where the program puts them.
        change: what happens to each batch in the end.
        outer: the program's loader around this one, whose attributes can be read, too.

    Attributes:
        dataset: the program's.
        batch_size: samples of a full batch of this process; None: the program's sampler decides.
        sampler, batch_sampler: the program's, whose `set_epoch` chooses this loader's epoch, too.
    """

    _set_once = ("dataset", "batch_size", "sampler", "batch_sampler")
    _set_often = ("mixup_enabled",)

    def __init__(
        self,
        loader: DataLoader[Any],
        config: LoaderConfig | None = None,
        *,
        seed: int | None = None,
        check: bool = True,
        rank: Rank | None = None,
        device: torch.device | None = None,
        on_bad_sample: str = "raise",
        change: Change | None = None,
        outer: Any = None,
    ):
        self._outer = loader if outer is None else outer
        loader = _without_iterator(loader, seed)
        self._loader, self._seed, self._change = loader, seed, change
        self._config, self._device = config, device or torch.device("cpu")
        substitutes = on_bad_sample == "substitute"
        self._program = LazyProgram(loader, seed, check, substitutes)
        self._order: SampleOrder | None = None
        self._stream: Stream | None = None
        if isinstance(loader.dataset, IterableDataset):
            kind = PipeStream if isinstance(loader.dataset, IterDataPipe) else Stream
            self._stream = kind(self._program)
            if substitutes:  # which sample is bad is known only before they are collated
                self._program.leave_collating()
        else:
            self._order = SampleOrder(loader, seed, rank)
        self._inner = _make_inner(loader, self._program, self._order, self._stream, seed)

        self.dataset = loader.dataset
        self.batch_size = loader.batch_size if self._order is None else self._order.batch_size
        self.sampler = _EpochSampler(self, loader.sampler)
        outer = loader.batch_sampler
        self.batch_sampler = None if outer is None else _EpochSampler(self, outer)

        fixed = None if isinstance(config, AutoConfig) else config
        self._executor = Executor(fixed, self._device, self.batch_size or 1, self._ahead)
        self._maker: ChosenMaker | None = None
        if isinstance(config, AutoConfig):
            self._maker = self._choose_maker(config)
        self._program.places = self._executor.places()
        self._account = Account()
        self._finisher = BatchFinisher(
            self._program, self._executor, self._account, device, check, loader.pin_memory
        )
        self._position = LazyPosition(0, 0, False)
        self._chosen_epoch: int | None = None  # of the next iter()
        self._seen_epoch = self._epoch_of_sampler
        self._running: weakref.ref[_LazyEpoch] | None = None
        self._process, self._is_closed = os.getpid(), False
        weakref.finalize(self, _close, self._executor, self._inner, self._process)

    def _choose_maker(self, config: AutoConfig) -> ChosenMaker:
        loader = self._loader
        fetched = loader.num_workers * (loader.prefetch_factor or 0)
        # PyTorch keeps that somebody has asked a stream for its length
        epoch = None if self._order is None else self._epoch_batches
        return ChosenMaker(
            config, self._executor, self._program, self._device, self._ahead, fetched, epoch
        )

    @property
    def _epoch_batches(self) -> int | None:
        """Batches of an epoch; None: nobody knows."""
        try:
            return len(self)
        except Exception:  # of a `__len__` of the program's
            return None

    @property
    def _ahead(self) -> int:
        """How many batches may be read before they are needed.

        Without workers none: the program's samples run between the steps of the training, and draw
        from the same random numbers. Nor without a seed if the program's own sampler decides, which
        may draw from them or look at what the training does.
        """
        is_free = self._order is None or self._order.is_known or self._seed is not None
        return AHEAD if self._loader.num_workers and is_free else 0

    # epochs

    def __iter__(self) -> Iterator[Any]:
        self._refuse_use()
        if running := self._running and self._running():
            running.end("another one was begun; a loader delivers one epoch at a time")
        position = self._next_position()
        self._position, self._chosen_epoch = position, None
        self._seen_epoch = self._epoch_of_sampler
        epoch = _LazyEpoch(self, position)
        self._running = weakref.ref(epoch)
        return epoch

    def _next_position(self) -> LazyPosition:
        """Where the next `iter()` begins."""
        epoch, samples, is_abandoned = self._position
        chosen = self._chosen_epoch
        if self._epoch_of_sampler != self._seen_epoch:  # the program has set it itself
            chosen = self._epoch_of_sampler
        if chosen is None:
            return LazyPosition(epoch + 1, 0, False) if is_abandoned else self._position
        return LazyPosition(chosen, 0 if is_abandoned or chosen != epoch else samples, False)

    @property
    def _epoch_of_sampler(self) -> int | None:
        """The epoch that a sampler has by `set_epoch`."""
        for own in (self._loader.batch_sampler, self._loader.sampler):
            if hasattr(own, "set_epoch") and isinstance(getattr(own, "epoch", None), int):
                return own.epoch  # type: ignore[union-attr]
        return None

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, from 0."""
        is_running = self._running is not None and self._running() is not None
        return (self._position if is_running else self._next_position()).epoch

    @check_arguments(epoch=(0, LARGEST_EPOCH))
    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next `iter()`, as `set_epoch` of the program's sampler does. It
        begins at its start; after a resume into this very epoch where the resume goes on.
        """
        for own in {id(each): each for each in self._samplers}.values():
            own.set_epoch(epoch)
        self._chosen_epoch, self._seen_epoch = epoch, self._epoch_of_sampler

    @property
    def _samplers(self) -> list[Any]:
        """The program's samplers that have epochs."""
        outer = self._loader.batch_sampler
        own = [self._loader.sampler, outer, getattr(outer, "sampler", None)]
        return [each for each in own if hasattr(each, "set_epoch")]

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch is: its epoch, the samples delivered in it by all ranks, and what
        must not change before a resume. JSON keeps it.

        Without a seed one in the middle of an epoch cannot be loaded, which a warning says.
        """
        self._refuse_use()
        epoch, samples, _ = self._position if self._chosen_epoch is None else self._next_position()
        count = self._order.count_at(epoch, samples) if self._order is not None else {}
        state = make_state(epoch, samples, self._seed, self.batch_size, self._facts, count)
        return state | ({"loader": str(self._maker.chooser)} if self._maker else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was called, with any number of workers and any backend, and of
        PyTorch's samplers also with any number of ranks.

        Raises:
            ConfigError: what decides the order has changed since, and the text names it.
        """
        self._refuse_use()
        epoch, samples = read_state(state, self._seed, self.batch_size, self._facts)
        if running := self._running and self._running():
            running.end("a state was loaded")
        if self._order is not None:
            self._order.go_on_from(state.get("sampler", {}))
        if self._maker is not None:
            self._maker.go_on_with(str(state.get("loader", "")))
        self._position, self._chosen_epoch = LazyPosition(epoch, samples, False), None
        self._seen_epoch = self._epoch_of_sampler

    @property
    def _facts(self) -> dict[str, Any]:
        return facts_of(self._order, self.dataset, self._loader.num_workers)

    # what a program reads

    def __len__(self) -> int:
        """Batches of one epoch of this process, as the DataLoader says."""
        own = type(self._inner).__len__ is not DataLoader.__len__
        return len(self._inner) if own or self._order is None else len(self._order)

    @property
    def bad_samples(self) -> list[tuple[Any, str, str]]:
        """(index, file, error) of each sample in whose place another one came."""
        return list(self._account.told.bad)

    @property
    def waited(self) -> int:
        """How many pictures of all batches waited until these were there."""
        return self._account.waited

    def explain(self) -> str:
        """Which share of pictures waits, which places in the program look at pixels and what would
        let these wait, what made the pictures, and what was compared and seeded.
        """
        lines = explain(
            self._account, self._program, self._order, self._executor, self._epoch_batches
        )
        chosen = [self._maker.chooser.describe()] if self._maker else []
        return "\n".join([*chosen, *lines])

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except AttributeError:
            raise AttributeError(
                f"{name} cannot be set on this loader, where it would be of no effect; set it on "
                "the program's DataLoader, and call from_torch again"
            ) from None

    def __getattr__(self, name: str) -> Any:
        # only called for what does not exist here: options of the program's loader
        if name.startswith("__") or "_outer" not in vars(self):
            raise AttributeError(name)
        outer = self._outer
        return getattr(outer if hasattr(outer, name) else self._loader, name)

    @property
    def mixup_enabled(self) -> bool:
        """Whether timm's collate function mixes, as of its PrefetchLoader."""
        return bool(getattr(self._loader.collate_fn, "mixup_enabled", False))

    @mixup_enabled.setter
    def mixup_enabled(self, value: bool) -> None:
        if hasattr(self._loader.collate_fn, "mixup_enabled"):
            self._loader.collate_fn.mixup_enabled = value

    # its end

    def close(self) -> None:
        """Ends workers, threads and backends. The loader cannot be used afterwards."""
        if running := self._running and self._running():
            running.end("the loader was closed")
        self._is_closed = True
        _close(self._executor, self._inner, self._process)

    def _refuse_use(self) -> None:
        if self._is_closed:
            raise RuntimeError("the loader is closed; call from_torch again")
        if os.getpid() != self._process:
            raise RuntimeError(
                "the loader was made in another process, of which this one is a fork; call "
                "from_torch in the process that uses it"
            )

    def __reduce__(self) -> Any:
        raise TypeError(
            "a loader cannot be pickled or copied, because it has threads and processes; call "
            "from_torch in the process that uses it"
        )

    def __repr__(self) -> str:
        epoch, samples, _ = self._position
        where = "closed" if self._is_closed else f"next is sample {samples} of epoch {epoch}"
        config = "as noted" if self._config is None else type(self._config).__name__
        return f"LazyLoader({type(self.dataset).__name__}, {config} on {self._device}; {where})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _close(executor: Executor, inner: DataLoader[Any], process: int) -> None:
    if os.getpid() == process:  # workers and threads are not those of a fork
        executor.close()
        end_workers(inner)


def _without_iterator(loader: DataLoader[Any], seed: int | None) -> DataLoader[Any]:
    """The loader itself; or a plain one that has the same batches, if it is of a class that keeps
    an iterator of its own, such as timm's MultiEpochsDataLoader and Ultralytics'
    InfiniteDataLoader, whose sampler begins again and again. A resume could not begin such a one in
    the middle.

    Raises:
        ConfigError: it has begun such an iterator already, and no seed says what that draws.
    """
    begun = [
        name
        for name, value in vars(loader).items()
        if isinstance(value, _BaseDataLoaderIter) and name != "_iterator"
    ]
    if begun and seed is None:
        raise ConfigError(
            f"{type(loader).__name__}.{begun[0]} has begun already, and an iterator in its place "
            "would draw other random numbers; give from_torch a seed="
        )
    if seed is None or type(loader).__iter__ is DataLoader.__iter__:
        return loader
    made = copy.copy(loader)
    plain: dict[str, Any] = {"_iterator": None, "persistent_workers": made.num_workers > 0}
    if isinstance(inner := getattr(loader.batch_sampler, "sampler", None), BatchSampler):
        plain["batch_sampler"] = inner
    vars(made).update(plain | dict.fromkeys(begun))
    made.__class__ = DataLoader
    return made


def _make_inner(
    loader: DataLoader[Any],
    program: LazyProgram,
    order: SampleOrder | None,
    stream: Stream | None,
    seed: int | None,
) -> DataLoader[Any]:
    """The program's DataLoader, with our data set, sampler and collate function in place of its
    own. All else is as it was, also what a class derived from DataLoader does.
    """
    inner = copy.copy(loader)
    own: dict[str, Any] = {"collate_fn": program.collate, "dataset": program, "_iterator": None}
    own["pin_memory"] = False  # it is done when the pictures are made
    if stream is not None:
        own["dataset"] = stream
    else:
        own["batch_sampler" if loader.batch_sampler is not None else "sampler"] = order
    if loader.num_workers:
        own["worker_init_fn"] = program.start
    if seed is not None:
        own["generator"] = None  # the workers' seeds are drawn from what is seeded
        own["in_order"] = True
    vars(inner).update(own)

    return inner


@dataclass
class Delivery:
    """How far the batches of an epoch are made.

    Attributes:
        samples: of all ranks, so far.
        left: how many batches are left at the start; None: it is not known.
        positions: after batches that were made, and not delivered yet.
        key: of the batch that was made last: by which random numbers are seeded that change it.
    """

    epoch: int
    samples: int
    left: int | None = None
    positions: deque[LazyPosition] = field(default_factory=deque)
    key: tuple[Any, ...] = ()


class _LazyEpoch(Iterator[Any]):
    """The batches that are left of one epoch. Nothing that it holds leads back to it, so that it
    ends with its last reference.
    """

    def __init__(self, loader: LazyLoader, position: LazyPosition):
        self._loader, self.epoch = loader, position.epoch
        self._why_ended = ""
        self._delivery = Delivery(position.epoch, position.samples)
        with ExitStack() as stack:  # which ends here if this fails
            if not loader._loader.num_workers:
                stack.enter_context(patched())
            self._begin(position)
            self._stack = stack.pop_all()

    def _begin(self, position: LazyPosition) -> None:
        loader = self._loader
        if workers := loader._loader.num_workers:
            loader._program.checks.go_on(loader._account.samples // workers)

        skipped = 0
        if loader._order is not None:
            loader._order.epoch, loader._order.delivered = position[:2]
            self._delivery.left = loader._order.left()
        elif loader._stream is not None:
            # a stream is run from its start, and what was delivered is left out
            skipped = position.samples
            loader._stream.begin(loader._inner, position.epoch)
        self._parcels = Parcels(loader._inner, loader._seed, position.epoch, skipped)
        works = loader._executor.run(map(_work_of, self._parcels))
        self._batches = self._plain = _finish(loader, works, self._delivery)
        if loader._change:
            self._batches = loader._change(self._delivery, self._batches)
        if loader._maker:
            loader._maker.begin()

    def __next__(self) -> Any:
        loader = self._loader
        loader._refuse_use()
        if self._why_ended:
            raise RuntimeError(f"this epoch was left when {self._why_ended}")
        try:
            if loader._order is not None:
                loader._order.run_ahead()
            if loader._maker:
                loader._maker.ask()
            batch = next(self._batches)
        except StopIteration:
            self._go_to(LazyPosition(self.epoch + 1, 0, False))
            self._free()
            raise
        except BaseException as error:
            self._go_to(loader._position._replace(is_abandoned=True))
            self.end(f"an error came: {type(error).__name__}")
            raise

        self._go_to(self._delivery.positions.popleft())
        if isinstance(batch, _Failed):  # the next batch comes all the same, as with a DataLoader
            raise batch.error
        if loader._maker:
            loader._maker.came()
        for text in loader._account.take_new():
            warnings.warn(text, stacklevel=2)
        return batch

    def _go_to(self, position: LazyPosition) -> None:
        if not self._why_ended:
            self._loader._position = position

    def end(self, why: str) -> None:
        """Ends it before its last batch."""
        self._why_ended = self._why_ended or why
        self._free()

    def _free(self) -> None:
        if os.getpid() == self._loader._process:
            for each in (self._batches, self._plain):
                if hasattr(each, "close"):
                    each.close()
            self._parcels.close()
            self._stack.close()

    # bound here, since modules may be gone when a program ends
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and hasattr(self, "_batches"):
            self._free()


def _finish(loader: LazyLoader, works: Iterator[LazyWork], delivery: Delivery) -> Iterator[Any]:
    """The finished batches of an epoch."""
    epoch = delivery.epoch
    rank = Rank() if loader._order is None else loader._order.rank
    for number, work in enumerate(works, 1):
        parcel: Parcel = work.parcel[0]
        delivery.key = loader._seed, "batch", epoch, delivery.samples + rank.index
        batch, count = _finish_or_fail(loader, work), parcel.count
        if isinstance(batch, _Failed):
            if loader._change:  # which knows of no errors
                raise batch.error
            count = count or loader.batch_size or 0  # of one that was raised it is not known
        loader._account.batches += 1
        loader._account.samples += count
        delivery.samples += count * rank.count
        is_last = number == delivery.left
        delivery.positions.append(
            LazyPosition(epoch + 1, 0, False)
            if is_last
            else LazyPosition(epoch, delivery.samples, True)
        )
        yield batch


class _Failed(NamedTuple):
    """Comes in the place of a batch."""

    error: Exception


def _finish_or_fail(loader: LazyLoader, work: LazyWork) -> Any:
    if raised := work.parcel[0].raised:
        return _Failed(raised)
    try:
        return loader._finisher.finish(work)
    except Exception as error:
        return _Failed(error)


def _work_of(parcel: Parcel) -> LazyWork:
    found = WaitingParts(parcel.batch)
    return LazyWork(found.cells, (parcel, found), parcel.raised)


class _EpochSampler:
    """The program's sampler, whose `set_epoch` also chooses the loader's epoch."""

    def __init__(self, loader: LazyLoader, own: Any):
        vars(self).update(_loader=weakref.ref(loader), _own=own)

    # programs ask isinstance(loader.sampler, DistributedSampler)
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._own)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next `iter()`."""
        if (loader := self._loader()) is not None:
            loader.set_epoch(epoch)

    @property
    def sampler(self) -> Any:
        """Of a batch sampler."""
        loader, inner = self._loader(), self._own.sampler
        return inner if loader is None else _EpochSampler(loader, inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own, name, value)

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own)
