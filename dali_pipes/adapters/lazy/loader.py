"""A live DataLoader whose pictures wait: `LazyLoader(loader)`.

    workers: the program's samples and batches, with pictures that wait (`_Program`) → main process: pictures are made (`execute`)

Random numbers: with a seed, `random`, NumPy, PyTorch and albumentations are seeded for every sample by (seed, epoch, place in the epoch),
and for every collate call, so that batches do not depend on the number of workers, nor on where one resumes.
The net: what fails while pictures wait is done once more without waiting. So an error is the program's own, or none.
"""

import copy
import hashlib
import itertools
import pickle
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.reduction import ForkingPickler
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.pin_memory import pin_memory

from dali_pipes.adapters.lazy.arrays import LazyArray
from dali_pipes.adapters.lazy.cells import Cell, Waiting
from dali_pipes.adapters.lazy.check import Copy
from dali_pipes.adapters.lazy.looks import hint
from dali_pipes.adapters.lazy.patches import know_libraries, patch_for_good
from dali_pipes.adapters.lazy.pictures import LazyPicture
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.state import PROCESS, Look, eager, sending, waiting

_CLOSED = (
    str,
    bytes,
    int,
    float,
    type(None),
    torch.Tensor,
    np.ndarray,
    type,
    FunctionType,
    ModuleType,
)  # nothing lazy is in them
_DEEPEST = 8  # levels of a batch
default_collate_fn_map[LazyArray] = lambda batch, *, collate_fn_map=None: torch.stack(
    [torch.as_tensor(each) for each in batch]
)
Execute = Callable[[list[Cell]], None]


# Random numbers


def seed_all(*numbers: Any) -> None:
    """Seeds all generators of this process by these numbers."""
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little") >> 1
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    _seed_albumentations(seed)


def _seed_albumentations(seed: int) -> None:
    """Its Composes have generators of their own; each is seeded when it is called next."""
    composition = sys.modules.get("albumentations.core.composition")
    if composition is None:
        return
    _ALBUMENTATIONS["seed"], _ALBUMENTATIONS["seeded"] = seed, set()
    if "call" not in _ALBUMENTATIONS:
        _ALBUMENTATIONS["call"] = call = composition.Compose.__call__

        def seeded(self: Any, *args: Any, **data: Any) -> Any:
            if id(self) not in _ALBUMENTATIONS["seeded"]:
                _ALBUMENTATIONS["seeded"].add(id(self))
                seed = _ALBUMENTATIONS["seed"]
                self.set_random_state(
                    np.random.default_rng(seed), random.Random(seed)
                )  # set_random_seed gives all steps equal numbers
            return call(self, *args, **data)

        composition.Compose.__call__ = seeded


_ALBUMENTATIONS: dict[str, Any] = {}


def _states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _restore(states: tuple[Any, ...]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@contextmanager
def own_numbers(active: bool) -> Iterator[None]:
    """Leaves the random numbers of the training process as they are."""
    before = _states() if active else None
    try:
        yield
    finally:
        if before:
            _restore(before)


# What runs in a worker

KINDS = ("array", "tensor", "picture")  # in the order in which they are given up
STOP = "the end of a stream"


class NotTheSame(Exception):
    """A sample is another one if its pictures wait."""


class Ask(NamedTuple):
    """Which sample is wanted."""

    epoch: int
    place: int  # in the epoch
    index: Any


@dataclass
class Parcel:
    """What a worker sends.

    Attributes:
        batch: what the program made; without `collated` the samples that its collate function is to get.
        asks: which samples these are; empty of a stream.
        opened: how many pictures were opened for it.
        seen: how often pictures were made in the worker, by place.
        said: what went wrong, in words.
    """

    batch: Any
    asks: list[Ask]
    collated: bool = True
    seed: Any = None
    opened: int = 0
    seen: Counter = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)

    def __reduce__(self) -> Any:
        with sending():
            return _unpacked, (bytes(ForkingPickler.dumps(vars(self))),)


def _unpacked(data: bytes) -> Parcel:
    return Parcel(**pickle.loads(data))


def _snapshot(samples: Any) -> Any:
    """A copy of what the program may still change, since its collate function, which copies as a rule, runs later."""
    with sending():
        return pickle.loads(pickle.dumps(samples, protocol=5))


class _Program(Dataset):
    """The program's data set, collate function and worker_init_fn."""

    def __init__(self, loader: DataLoader, seed: int | None, checks: bool):
        self.dataset, self.own_collate, self.own_init, self.seed = (
            loader.dataset,
            loader.collate_fn,
            loader.worker_init_fn,
            seed,
        )
        self.checks, self.made, self.next_check, self.checked_collate = checks, 0, 1, False
        self.batched, self.late, self.asks, self.said = (
            loader.batch_size is not None or loader.batch_sampler is not None,
            False,
            [],
            [],
        )

    def start(self, worker: int) -> None:
        """The `worker_init_fn`."""
        PROCESS.waits = True
        patch_for_good()
        vars(get_worker_info())["dataset"] = self.dataset  # which the program may change here
        if self.own_init:
            self.own_init(worker)

    def __getitem__(self, ask: Ask) -> Any:
        self.asks = [ask]
        return self._sample(ask)

    def __getitems__(self, asks: list[Ask]) -> list[Any]:
        self.asks = asks
        together = getattr(self.dataset, "__getitems__", None)
        if together:
            return self._tried(lambda: together([ask.index for ask in asks]), asks[0])
        return [self._sample(ask) for ask in asks]

    def _sample(self, ask: Ask) -> Any:
        return self._tried(lambda: self.dataset[ask.index], ask)

    def _tried(self, make: Callable[[], Any], ask: Ask) -> Any:
        """A sample whose pictures wait; if that fails, one whose pictures do not."""
        before = None if self.seed is not None else _states()
        self._seed("sample", ask)
        PROCESS.failed = None
        try:
            made = self._compared(make, make) if self._is_checked() else make()
        except Exception as error:
            PROCESS.failed = error
        if PROCESS.failed is None:
            return made

        error, PROCESS.failed = PROCESS.failed, None
        self._seed("sample", ask) if before is None else _restore(before)
        with eager():
            made = make()  # its own error, if there is one
        self._say(
            f"sample {ask.index}: {type(error).__name__}: {error}; without waiting all is well",
            error,
        )
        return made

    def _is_checked(self) -> bool:
        """Whether the next sample is: the first, the tenth, the hundredth and so on."""
        self.made += 1
        if not self.checks or self.made < self.next_check or PROCESS.off == set(KINDS):
            return False
        self.next_check *= 10
        return True

    def _compared(self, make: Callable[[], Any], make_true: Callable[[], Any]) -> Any:
        """What `make` makes, with true pictures, if `make_true` makes the same in a copy of this process."""
        copied = Copy(make_true)
        try:
            made = Found(make()).true()
            if differs := copied.difference(made):
                raise NotTheSame(differs)
            return made
        finally:
            copied.close()

    def _say(self, text: str, error: BaseException) -> None:
        if not isinstance(
            error, OSError
        ):  # of a file that says nothing; else one kind after the other is made at once
            off = (
                KINDS
                if isinstance(error, NotTheSame)
                else [kind for kind in KINDS if kind not in PROCESS.off][:1]
            )
            PROCESS.off.update(off)
            text += f"; from now on nothing waits as {', '.join(off)}"
        self.said.append(text)

    def _seed(self, what: str, ask: Ask) -> None:
        if self.seed is not None:
            seed_all(self.seed, what, ask.epoch, ask.place)

    def collate(self, samples: Any) -> Parcel:
        """The `collate_fn`. If the program's looks at pixels, it is left to the main process, from the second batch on."""
        seed = (
            (self.seed, "collate", *self.asks[0][:2])
            if self.seed is not None and self.asks
            else None
        )
        if self.late:
            seed = seed or (get_worker_info() and ("collate", torch.randint(2**62, ()).item()))
            with suppress(
                Exception
            ):  # of a picture that can not be made: the main process will see
                samples = _true_pictures(samples)
            return self._parcel(_snapshot(samples), False, seed)

        states, PROCESS.failed = None if seed else _states(), None
        checked = self.checks and not self.checked_collate and PROCESS.off != set(KINDS)
        self.checked_collate = True
        try:
            seed_all(*seed) if seed else None
            plain = partial(self._collate_early, samples)
            batch = (
                self._compared(plain, lambda: self.own_collate(Found(samples).true()))
                if checked
                else plain()
            )
        except Exception as error:
            if PROCESS.failed is not None and not isinstance(error, NotTheSame):  # the same
                return self._parcel(_snapshot(samples), False, seed)
            seed_all(*seed) if seed else _restore(states)
            with eager():
                batch = self.own_collate(Found(samples).true())
            self._say(
                f"collate_fn: {type(error).__name__}: {error}; without waiting all is well", error
            )
        return self._parcel(batch, True, None)

    def _collate_early(self, samples: Any) -> Any:
        before = PROCESS.seen.total()
        batch = self.own_collate(samples)
        self.late = self.batched and PROCESS.seen.total() > before
        return batch

    def _parcel(self, batch: Any, collated: bool, seed: Any) -> Parcel:
        made = Parcel(
            batch, self.asks, collated, seed, PROCESS.opened, Counter(PROCESS.seen), self.said
        )
        PROCESS.seen.clear()
        PROCESS.opened = 0
        self.asks, self.said = [], []
        return made

    def again(self, asks: list[Ask]) -> Any:
        """The same batch, without waiting: in the main process, after a picture could not be made there."""
        with eager():
            samples = []
            for ask in asks:
                self._seed("sample", ask)
                samples.append(self.dataset[ask.index])
            if self.seed is not None:
                seed_all(self.seed, "collate", *asks[0][:2])
            return self.own_collate(samples if self.batched else samples[0])


class _Stream(IterableDataset):
    """The same of a program whose data set is an iterable: an error can not be mended, since what it has given is gone."""

    def __init__(self, program: _Program):
        self.program, self.epoch = program, -1

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        worker = get_worker_info()
        samples, place = iter(self.program.dataset), 0
        while True:
            self.program._seed("stream", Ask(self.epoch, place, worker.id if worker else 0))
            ask = partial(next, samples, STOP)
            sample = self.program._compared(ask, ask) if self.program._is_checked() else ask()
            if sample is STOP:
                return
            yield sample
            place += 1


class _Order:
    """The program's (batch) sampler: gives `Ask`s, and with a seed the same order for each (seed, epoch)."""

    def __init__(self, sampler: Any, seed: int | None, batched: bool):
        self.sampler, self.seed, self.batched, self.epoch, self.skip = sampler, seed, batched, 0, 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        chosen = iter(self.sampler) if self.seed is None else self._seeded(self.epoch)
        return itertools.islice(self._asks(chosen, self.epoch), self.skip, None)

    def _asks(self, chosen: Iterator[Any], epoch: int) -> Iterator[Any]:
        place = itertools.count()
        for each in chosen:
            yield (
                [Ask(epoch, next(place), index) for index in each]
                if self.batched
                else Ask(epoch, next(place), each)
            )

    def _seeded(self, epoch: int) -> Iterator[Any]:
        """What the sampler gives, whose random numbers are apart from all others."""
        generator = getattr(getattr(self.sampler, "sampler", self.sampler), "generator", None)
        if generator is not None:
            generator.manual_seed(hash((self.seed, epoch)) & 2**63 - 1)
        with own_numbers(True):
            seed_all(self.seed, "order", epoch)
            order, states = iter(self.sampler), _states()
        while True:
            with own_numbers(True):
                _restore(states)
                try:
                    chosen = next(order)
                except StopIteration:
                    return
                states = _states()
            yield chosen


# What runs in the main process


class LazyLoader:
    """
    Args:
        loader: the program's; it stays as it is.
        seed: of all random numbers; None: they are drawn as the program draws them.
        execute: makes all of these cells.
        checks: whether some samples are made twice, by copies of the process, and compared.
    """

    def __init__(
        self,
        loader: DataLoader,
        seed: int | None = None,
        execute: Execute | None = None,
        checks: bool = True,
    ):
        self.loader, self.seed, self.execute = loader, seed, execute or make_all
        self.epoch = self.next_epoch = self.batches = self.skip = self.waited = self.opened = (
            self.kept
        ) = 0
        self.seen: Counter[Look] = Counter()
        self.said: list[str] = []
        know_libraries()
        self._program = _Program(loader, seed, checks)
        self._is_stream = isinstance(loader.dataset, IterableDataset)
        self._order: _Order | None = None
        self._inner = copy.copy(loader)
        own: dict[str, Any] = {
            "collate_fn": self._program.collate,
            "dataset": self._program,
            "_iterator": None,
        }
        if loader.num_workers:
            own["worker_init_fn"] = self._program.start
        if self._is_stream:
            own["dataset"] = _Stream(self._program)
        else:
            name = "sampler" if loader.batch_sampler is None else "batch_sampler"
            own[name] = self._order = _Order(getattr(loader, name), seed, name == "batch_sampler")
        vars(self._inner).update(own)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name in ("loader", "_inner"):
            raise AttributeError(name)
        return getattr(self.loader, name)

    def state_dict(self) -> dict[str, int]:
        """Where it is: after so many batches of an epoch."""
        return {"epoch": self.epoch, "batches": self.batches}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next_epoch, self.skip = state["epoch"], state["batches"]

    def __iter__(self) -> Iterator[Any]:
        self.epoch, self.next_epoch, self.batches, self.skip = (
            self.next_epoch,
            self.next_epoch + 1,
            self.skip,
            0,
        )
        for batch in self._batches():
            self.batches += 1
            yield batch
        self.epoch, self.batches = self.next_epoch, 0

    def _batches(self) -> Iterator[Any]:
        return map(self.finish, self._parcels())

    def explain(self) -> str:
        """Which share of the pictures waits, and for each place in the program where pixels are looked at what would let them wait."""
        lines = [
            f"of {self.opened} pictures that the program opened {self.kept} waited for the batch ({self.kept / max(self.opened, 1):.0%})"
        ]
        for look, count in self.seen.most_common():
            lines.append(
                f"{look.place}, in {look.where}: pixels are looked at {count} times, by {look.by}; {hint(look)}"
            )
        if self._program.late:
            lines.append(
                "the collate function looks at pixels; it runs in the training process, on finished pictures"
            )
        return "\n".join(lines + self.said)

    def _parcels(self) -> Iterator[Parcel]:
        """What the workers send in one epoch."""
        if self._order is not None:
            self._order.epoch, self._order.skip = self.epoch, self.batches
        apart = not self.loader.num_workers and self.seed is not None
        if not self.loader.num_workers:
            patch_for_good()
        iterator = iter(self._inner)
        while True:
            with waiting(not self.loader.num_workers), own_numbers(apart):
                parcel = next(iterator, None)
            if parcel is None:
                break
            self._program.late |= not parcel.collated
            self.seen.update(parcel.seen)
            self.opened += parcel.opened
            for text in parcel.said:
                self.said.append(text)
                warnings.warn(text, stacklevel=3)
            yield parcel

    def finish(self, parcel: Parcel) -> Any:
        """The batch that the program would have made."""
        found = Found(parcel.batch)
        try:
            self.execute(found.cells)
            return self.deliver(parcel, found)
        except Exception as error:
            return self.ask_again(parcel, error)

    def deliver(self, parcel: Parcel, found: "Found") -> Any:
        """The same, once the cells are made."""
        self.waited, self.kept = self.waited + found.waited, self.kept + found.sources
        batch = found.true()
        if not parcel.collated:
            with eager(), own_numbers(parcel.seed is not None):
                if parcel.seed is not None:
                    seed_all(*parcel.seed)
                batch = self._program.own_collate(batch)
        return pin_memory(batch) if self.loader.pin_memory and torch.cuda.is_available() else batch

    def ask_again(self, parcel: Parcel, error: Exception) -> Any:
        if not parcel.asks:
            raise error
        text = f"samples {[ask.index for ask in parcel.asks]}: {type(error).__name__}: {error}; the program is asked once more"
        self.said.append(text)
        warnings.warn(text, stacklevel=3)
        with own_numbers(True):
            return self._program.again(parcel.asks)


def make_all(cells: list[Cell]) -> None:
    """Carries all out as it was noted."""
    for cell in cells:
        cell.make()


class Found:
    """The lazy things in a batch, whatever its structure.

    Attributes:
        cells: those to be made.
        waited: how many pictures, of how many `sources`.
    """

    def __init__(self, batch: Any):
        self.batch = batch
        self._things: dict[int, Any] = {}
        self._walk(batch, set())
        cells = {
            id(each.cell): each.cell
            for each in self._things.values()
            if isinstance(each, Waiting) and each.waits
        }
        self.cells = list(cells.values())
        recipes = [row for cell in self.cells for row in cell.rows if isinstance(row, Recipe)]
        self.waited, self.sources = len(recipes), len({id(recipe.source) for recipe in recipes})

    def _walk(self, value: Any, known: set[int], depth: int = 0) -> None:
        if isinstance(value, Waiting) or type(value) is LazyPicture:
            self._things[id(value)] = value
        elif depth < _DEEPEST and not isinstance(value, _CLOSED) and id(value) not in known:
            known.add(id(value))
            for each in _parts(value):
                self._walk(each, known, depth + 1)

    def true(self) -> Any:
        """The batch with true things; containers are new ones, but for those of unknown classes, which get them."""
        if not self._things:
            return self.batch
        return self._true(self.batch, {})

    def _true(self, value: Any, made: dict[int, Any]) -> Any:
        if id(value) in made:
            return made[id(value)]
        if id(value) in self._things:
            made[id(value)] = value.true()
        elif isinstance(value, dict):
            made[id(value)] = same = copy.copy(value)
            same.update({key: self._true(each, made) for key, each in value.items()})
        elif isinstance(value, tuple):
            parts = [self._true(each, made) for each in value]
            made[id(value)] = (
                type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
            )
        elif isinstance(value, list):
            made[id(value)] = same = copy.copy(value)
            same[:] = [self._true(each, made) for each in value]
        elif hasattr(value, "__dict__") and not isinstance(value, _CLOSED):
            made[id(value)] = value
            vars(value).update({key: self._true(each, made) for key, each in vars(value).items()})
        return made.get(id(value), value)


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple, set)):
        return value
    return vars(value).values() if hasattr(value, "__dict__") else ()


def _true_pictures(samples: Any) -> Any:
    """Pillow's pictures are made here, by many workers at once."""
    found = Found(samples)
    found._things = {key: each for key, each in found._things.items() if type(each) is LazyPicture}
    return found.true()
