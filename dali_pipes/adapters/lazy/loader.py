"""A live DataLoader whose pictures wait: `LazyLoader(loader)`.

    workers: the program's samples and batches, with pictures that wait (`Program`) → main process: pictures are made (`execute`)

Random numbers: with a seed, `random`, NumPy, PyTorch and albumentations are seeded for every sample by (seed, epoch, place in the epoch),
and for every collate call, so that batches do not depend on the number of workers, nor on where one resumes.
The net: what fails while pictures wait is done once more without waiting. So an error is the program's own, or none.
"""

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

from dali_pipes.adapters.lazy.cells import Cell
from dali_pipes.adapters.lazy.found import Found, make_all
from dali_pipes.adapters.lazy.looks import hint
from dali_pipes.adapters.lazy.order import Order
from dali_pipes.adapters.lazy.patching import patch_for_good
from dali_pipes.adapters.lazy.program import Parcel, Program, Stream
from dali_pipes.adapters.lazy.random_numbers import own_numbers, seed_all
from dali_pipes.adapters.lazy.state import Look, eager, waiting

Execute = Callable[[list[Cell]], None]


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
        self._program = Program(loader, seed, checks)
        self._is_stream = isinstance(loader.dataset, IterableDataset)
        self._order: Order | None = None
        self._inner = copy.copy(loader)
        own: dict[str, Any] = {
            "collate_fn": self._program.collate,
            "dataset": self._program,
            "_iterator": None,
        }
        if loader.num_workers:
            own["worker_init_fn"] = self._program.start
        if self._is_stream:
            own["dataset"] = Stream(self._program)
        else:
            name = "sampler" if loader.batch_sampler is None else "batch_sampler"
            own[name] = self._order = Order(getattr(loader, name), seed, name == "batch_sampler")
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

    def deliver(self, parcel: Parcel, found: Found) -> Any:
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
