"""The samples of an IterableDataset, as its own `__iter__` yields them.

`SamplesByPlace` gives them numbers, so that a few of them can be traced as those of other data
sets. `IteratedItems` runs the iterator in the workers of a DataLoader, under recorders: what goes
back to the main process is files and values, no pixels.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count, islice, repeat
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from dali_pipes.adapters.every_epoch.reader import RecordedReader
from dali_pipes.adapters.from_torch.reading import place_of, refuse_unless
from dali_pipes.adapters.from_torch.recording.active_visit import active, record
from dali_pipes.adapters.from_torch.recording.light_copy import light_copy
from dali_pipes.adapters.from_torch.recording.marks import is_picture
from dali_pipes.adapters.from_torch.recording.visit import Opened, Supply, Visit
from dali_pipes.adapters.from_torch.recording.worker_info import in_worker
from dali_pipes.adapters.from_torch.structure import leaves
from dali_pipes.adapters.from_torch.tracer import CHEAP_SIZES
from dali_pipes.adapters.items.encoded import Encoded
from dali_pipes.adapters.items.headers import header_of
from dali_pipes.adapters.items.run import BadPicture, Item, ItemBatch, images_of, name_picture
from dali_pipes.adapters.items.skeletons import form_of
from dali_pipes.data.loose_images import NO_IMAGES
from dali_pipes.errors import ConfigError
from dali_pipes.system.workers import leave_signals_to_the_main_process

# Visits one after the other have other noise, so that a picture that the program keeps from one to
# the next is no picture of the next. A visit hands out fewer pictures than `_STRIDE`, as a rule.
_NOISES, _STRIDE = 13, 128
_END = 2**12  # bytes at the end of an encoded image that stand for it


class SamplesByPlace(Dataset[Any]):
    """An IterableDataset whose samples have numbers: their places in what the first worker yields.

    Each time a new iterator of a new copy of the data set is run up to that place.

    Args:
        workers: how many there are.
    """

    def __init__(self, iterated: Any, workers: int):
        self.iterated, self._workers = iterated, workers

    def __getitem__(self, place: int) -> Any:
        copied, visit = light_copy(self.iterated), active()
        with in_worker(copied, self._workers, 0):
            iterator = iter(copied)
            skipped = [self._skip(iterator, visit, number) for number in range(place)]
            try:
                sample = next(iterator)
            except StopIteration:
                raise IndexError(f"its iterator ends before sample {place}") from None
        self._refuse_earlier(sample, skipped)
        return sample

    def _refuse_earlier(self, sample: Any, skipped: list[Visit]) -> None:
        """Refuses a picture that was made before this sample was asked for."""
        held = [value for _, value in leaves(sample) if is_picture(value)]
        earlier = [mark.value for visit in skipped for mark in visit.marks]
        refuse_unless(
            not any(one is other for one in held for other in earlier),
            f"the IterableDataset {place_of(type(self.iterated), '__iter__')}",
            "it decodes pictures before it yields their samples, as for a buffer that shuffles "
            "them, so which file a picture is of cannot be followed",
            "let the buffer hold paths or encoded bytes, and decode what comes out of it",
        )

    def _skip(self, iterator: Iterator[Any], visit: Visit | None, number: int) -> Visit:
        assert visit is not None, "samples are visited"
        # once a step has returned something there is noise for it, and nothing is decoded
        supply = Supply(
            size=CHEAP_SIZES[0] if visit.known else None,
            modes=visit.supply.modes,
            hides_draws=visit.supply.hides_draws,
        )
        number = _STRIDE * (1 + number % (_NOISES - 1))
        skipped = Visit(
            supply, visit.keys, visit.known, visit.seed, visit.containers, noise_number=number
        )
        record(skipped, next, iterator, None)
        return skipped

    def forms(self, most: int) -> list[Any]:
        """The forms of the first samples (`form_of`), of `most` at most."""
        copied = light_copy(self.iterated)
        with in_worker(copied, self._workers, 0):
            return [form_of(sample) for sample in islice(iter(copied), most)]


class IteratedReader(RecordedReader):
    """Takes the next sample of an iterator, in place of one of an index."""

    # pictures as large as these are tried with the samples that come next
    _sizes: tuple[tuple[int, int], ...] = ()

    def _get(self, iterator: Any, index: Any) -> Any:
        try:
            return next(iterator)
        except StopIteration:
            visit = active()
            # An iterator that leaves out pictures of such sizes finds no other ones. It may also
            # have been at its end, with fewer pictures than a sample has.
            few = min(1 + max(files) for files in self._trace.files.values())
            size = visit.supply.size if visit and len(visit.opened) >= few else None
            if size and size != self._supply.size:
                height, width = size
                raise self._refusal(
                    index,
                    f"does not come where pictures are of {width} × {height} pixels: the iterator "
                    "leaves out pictures of some sizes",
                    "leave them out of the list of files",
                ) from None
            raise

    def read_next(self, iterator: Iterator[Any], place: int) -> Item:
        """The next sample, taken apart.

        Args:
            place: among those of this worker.

        Raises:
            StopIteration: there is none.
        """
        info = get_worker_info()
        self._noise_number = _STRIDE * (place % _NOISES)
        name = f"{place} of worker {info.id if info else 0}"
        supply = self._supply
        if self._sizes:
            supply, self._sizes = replace(supply, size=self._sizes[0]), self._sizes[1:]
        skeleton, encoded = self._read(iterator, name, supply)
        return Item(place, skeleton, encoded, [header_of(one.source) for one in encoded])

    def _try_size(self, dataset: Any, index: Any, opened: Opened, done: Any) -> None:
        # an iterator yields a sample once: the next one gets noise of this size
        if (size := self._new_size(opened)) is not None:
            self._sizes = (*self._sizes, size)


class IteratedItems(IterableDataset[Any]):
    """The samples of an IterableDataset, each an `Item`, or the error that ends them.

    Args:
        dataset: the program's.
        seed: of the loader.
    """

    def __init__(self, dataset: Any, reader: IteratedReader, seed: int):
        self.dataset, self.seed, self.reader = dataset, seed, reader

    def __iter__(self) -> Iterator[Any]:
        with self.reader.block():
            try:
                iterator = iter(self.dataset)
                for place in count():
                    try:
                        item = self.reader.read_next(iterator, place)
                    except StopIteration:
                        return
                    yield item
            except ConfigError as error:
                # As a value: what a worker raises reaches the user as text. More than once, since
                # a batch that is not full may be dropped.
                yield from repeat(error)


@dataclass(frozen=True, slots=True)
class IteratedBatch(ItemBatch):
    """
    Attributes:
        worker: the number of the worker that made it.
        keys: what tells the pictures of each sample from those of others.
    """

    worker: int = 0
    keys: tuple[bytes, ...] = ()

    def name_of(self, place: int) -> str:
        """What messages call the first picture of a sample."""
        return self.images.name(place) if len(self.images) else "a bad picture"


@dataclass(frozen=True, slots=True)
class IteratedWorkers:
    """Where an iterator is run: as in the program's own DataLoader.

    Attributes:
        batch_size, drop_last, num_workers, prefetch_factor, persistent, timeout, context,
            worker_init_fn: as of a DataLoader.
        generator: seeds the workers.
    """

    batch_size: int
    drop_last: bool
    num_workers: int
    prefetch_factor: int
    persistent: bool
    timeout: float
    context: Any
    worker_init_fn: Any
    generator: torch.Generator

    def dataloader(self, items: Any, tasks: Any = None) -> "DataLoader[Any]":
        """A DataLoader of `IteratedItems`."""
        return self.like_theirs(
            items,
            collate_fn=_Joined(items.reader),
            worker_init_fn=_Beginning(items.dataset, self.worker_init_fn),
        )

    def like_theirs(self, dataset: Any, **options: Any) -> "DataLoader[Any]":
        """A DataLoader with the options of the program's own, whose workers draw the same random
        numbers as those of `dataloader`.
        """
        each = {"worker_init_fn": self.worker_init_fn, **options}
        return DataLoader(
            dataset,
            self.batch_size,
            drop_last=self.drop_last,
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent,
            timeout=self.timeout,
            multiprocessing_context=self.context,
            generator=self.generator,
            **each,
        )


class _Beginning:
    """The `worker_init_fn` of the workers: calls the program's own, which may set up the data set
    that `get_worker_info` tells of.
    """

    def __init__(self, dataset: Any, own: Any):
        self._dataset, self._own = dataset, own

    def __call__(self, worker: int) -> None:
        leave_signals_to_the_main_process(worker)
        vars(get_worker_info())["dataset"] = self._dataset
        if self._own:
            self._own(worker)


class _Joined:
    """The collate function of the workers: makes an `IteratedBatch` of items."""

    def __init__(self, reader: IteratedReader):
        self._reader = reader

    def __call__(self, items: list[Any]) -> IteratedBatch:
        info = get_worker_info()
        worker = info.id if info else 0
        whole = [item for item in items if isinstance(item, Item)]
        error = next((item for item in items if not isinstance(item, Item)), None)
        ids = np.array([item.number for item in whole], np.int64)
        if error is not None or not whole:
            return IteratedBatch(None, NO_IMAGES, [], ids, error, worker)
        bad = [
            BadPicture(item.number, one.key, name_picture(one, item.number), header.problem)
            for item in whole
            for one, header in zip(item.encoded, item.headers, strict=True)
            if header.problem
        ]
        keys = tuple(map(_key_of, whole))
        if bad:
            return IteratedBatch(None, NO_IMAGES, bad, ids, None, worker, keys)
        values = self._reader.join([item.skeleton for item in whole], ids)
        return IteratedBatch(values, images_of(whole), [], ids, None, worker, keys)


def _key_of(item: Item) -> bytes:
    """What tells the pictures of a sample from those of others."""
    digest = blake2b(digest_size=8)
    for one in item.encoded:
        digest.update(_short(one))
    return digest.digest()


def _short(one: Encoded) -> bytes:
    if isinstance(one.source, str):
        return os.fsencode(one.source) + b"\0"
    # its length and its end: all of it would take longer than reading it
    return b"%d " % len(one.source) + one.source[-_END:]
