"""What runs in a worker: the program's data set and collate function, and the net below them."""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from dali_pipes.adapters.lazy.arrays import LazyArray
from dali_pipes.adapters.lazy.compared import Copy
from dali_pipes.adapters.lazy.found import Found, true_pictures
from dali_pipes.adapters.lazy.order import Ask
from dali_pipes.adapters.lazy.patching import patch_for_good
from dali_pipes.adapters.lazy.random_numbers import read_states, restore, seed_all
from dali_pipes.adapters.lazy.state import PROCESS, eager, sending

default_collate_fn_map[LazyArray] = lambda batch, *, collate_fn_map=None: torch.stack(
    [torch.as_tensor(each) for each in batch]
)

KINDS = ("array", "tensor", "picture")  # in the order in which they are given up
STOP = "the end of a stream"


class NotTheSame(Exception):
    """A sample is another one if its pictures wait."""


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


class Program(Dataset):
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
        before = None if self.seed is not None else read_states()
        self.seed_for("sample", ask)
        PROCESS.failed = None
        try:
            made = self._compared(make, make) if self._is_checked() else make()
        except Exception as error:
            PROCESS.failed = error
        if PROCESS.failed is None:
            return made

        error, PROCESS.failed = PROCESS.failed, None
        self.seed_for("sample", ask) if before is None else restore(before)
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

    def seed_for(self, what: str, ask: Ask) -> None:
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
                samples = true_pictures(samples)
            return self._parcel(_snapshot(samples), False, seed)

        states, PROCESS.failed = None if seed else read_states(), None
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
            seed_all(*seed) if seed else restore(states)
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
                self.seed_for("sample", ask)
                samples.append(self.dataset[ask.index])
            if self.seed is not None:
                seed_all(self.seed, "collate", *asks[0][:2])
            return self.own_collate(samples if self.batched else samples[0])


class Stream(IterableDataset):
    """The same of a program whose data set is an iterable: an error can not be mended, since what it has given is gone."""

    def __init__(self, program: Program):
        self.program, self.epoch = program, -1

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        worker = get_worker_info()
        samples, place = iter(self.program.dataset), 0
        while True:
            self.program.seed_for("stream", Ask(self.epoch, place, worker.id if worker else 0))
            ask = partial(next, samples, STOP)
            sample = self.program._compared(ask, ask) if self.program._is_checked() else ask()
            if sample is STOP:
                return
            yield sample
            place += 1
