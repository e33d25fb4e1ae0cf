"""Runs the items of planned batches: `ItemRunner`, the data set of a DataLoader whose workers make
whole batches.

Before each item the generators that the whole process shares are seeded by (seed, epoch, id), so
that an item does not depend on what ran before it. Its `Encoded` are taken out, and the headers of
their files are read. The rest is collated as PyTorch's default_collate does. What goes back to the
main process is an `ItemBatch`: paths, sizes and values, no pixels.
"""

import pickle
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info

from dali_pipes.adapters.from_torch.recording.random_states import states_kept
from dali_pipes.adapters.from_torch.structure import slot
from dali_pipes.adapters.items.encoded import Encoded
from dali_pipes.adapters.items.headers import header_of
from dali_pipes.adapters.items.skeletons import (
    collate_skeletons,
    find_difference,
    form_of,
    places_of,
    rebuild,
)
from dali_pipes.adapters.items.transform import ItemPicture, are_alike
from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.loose_images import NO_IMAGES, LooseImages
from dali_pipes.errors import ConfigError
from dali_pipes.plan.philox import HIGH, Kind, philox4x32
from dali_pipes.plan.transforms import Transform


class BadPicture(NamedTuple):
    """A picture that cannot be used.

    Attributes:
        item: the id of the item that has it.
        key: what tells it from others: its path, or a hash of its bytes.
        name: what messages call it.
    """

    item: int
    key: str
    name: str
    reason: str


class ItemTask(NamedTuple):
    """The items that are to be run for one planned batch.

    Attributes:
        bad: the keys of pictures that are known to be bad.
        numbers: by which the seeds of the items are keyed; None: by their ids. Items that an epoch
            repeats have others each time.
    """

    epoch: int
    ids: NDArray[np.int64]
    bad: frozenset[str] = frozenset()
    numbers: NDArray[np.int64] | None = None

    @property
    def seeded_by(self) -> NDArray[np.int64]:
        return self.ids if self.numbers is None else self.numbers


@dataclass(frozen=True, slots=True)
class ItemBatch:
    """N items that were run.

    Attributes:
        values: the collated items, with a `PictureSlot` in place of each picture.
        images: the pictures: all N of the first place, then all of the second one.
        bad: pictures that cannot be used. Their items were replaced by others if that is wanted;
            else there are no values.
        ids: (N,) of the items that were run, which are those of the plan, or replace them.
        error: what is wrong with the items, after what `bad` says; None: nothing.
    """

    values: Any
    images: LooseImages
    bad: list[BadPicture]
    ids: NDArray[np.int64]
    error: ConfigError | None = None


class Item(NamedTuple):
    """An item that was run, with a `PictureSlot` in place of each picture, and these."""

    number: int
    skeleton: Any
    encoded: list[Encoded]
    headers: list[Header]


class _NoUsableItem(ConfigError):
    """There is no item to replace one that cannot be used."""


class ItemReader:
    """Runs an item, and takes it apart: this one takes the `Encoded` out of it.

    Others do something else with data sets that have none (adapters/every_epoch).
    """

    def block(self) -> AbstractContextManager[Any]:
        """The block in which the items of a batch are run."""
        # in a worker the random states belong to nobody else
        return nullcontext() if get_worker_info() else states_kept()

    def seed(self, seeds: NDArray[np.uint32]) -> None:
        """Seeds what the next item draws from."""
        seed_generators(seeds)

    def read(self, dataset: Any, number: int) -> tuple[Any, list[Encoded]]:
        """Runs an item; returns it with a `PictureSlot` in place of each picture, and these."""
        encoded: list[Encoded] = []

        def take_out(leaf: Any) -> Any:
            if not isinstance(leaf, Encoded):
                return leaf
            encoded.append(leaf)
            return slot(len(encoded) - 1)

        return rebuild(take_out, dataset[number]), encoded

    def join(self, skeletons: list[Any], ids: NDArray[np.int64]) -> Any:
        """The values of a batch of items."""
        return collate_skeletons(skeletons, ids)


class ItemRunner(Dataset[ItemBatch]):
    """
    Args:
        count: of the items.
        reader: runs a single item.
        pictures: those that every item has.
        form: of every item, as `form_of` makes it; None: items are not compared.
        default: the transform of an Encoded that names none.
        most_bad: how many pictures may be bad before no more items are tried in place of one that
            cannot be used; None: it is not replaced. It is replaced by the item after it in the
            data set, so that the replacement does not depend on the batch.
    """

    def __init__(
        self,
        dataset: Any,
        count: int,
        seed: int,
        pictures: Sequence[ItemPicture],
        form: Any,
        default: Transform | None,
        most_bad: float | None,
        reader: ItemReader,
    ):
        self.dataset, self.seed, self._reader = dataset, seed, reader
        self._pictures, self._form, self._default = pictures, form, default
        self._most_bad, self._count = most_bad, count
        # the last transform at each place that was found to be the one that it has
        self._known = [each.transform for each in pictures]

    def __getitem__(self, task: ItemTask) -> ItemBatch:
        try:
            with self._reader.block():
                return self._run(task)
        except ConfigError as error:
            # as a value: what a worker raises reaches the user with the worker's traceback as text
            return ItemBatch(None, NO_IMAGES, [], task.ids, error)

    def _run(self, task: ItemTask) -> ItemBatch:
        bad: list[BadPicture] = []
        numbers = task.seeded_by
        seeds = seeds_of(self.seed, task.epoch, numbers)
        each_id = zip(task.ids.tolist(), numbers.tolist(), seeds, strict=True)
        try:
            items = [self._usable_item(*each, task, bad) for each in each_id]
        except _NoUsableItem as error:
            return ItemBatch(None, NO_IMAGES, bad, task.ids, error)
        if bad and self._most_bad is None:
            return ItemBatch(None, NO_IMAGES, bad, task.ids)

        ids = np.array([item.number for item in items], np.int64)
        values = self._reader.join([item.skeleton for item in items], ids)
        return ItemBatch(values, images_of(items), bad, ids)

    def _usable_item(
        self,
        number: int,
        seeded_by: int,
        seeds: NDArray[np.uint32],
        task: ItemTask,
        bad: list[BadPicture],
    ) -> Item:
        """The item of this id; if it cannot be used, the next one in the data set that can be.

        Adds what cannot be used to `bad`.
        """
        unusable = ""
        for ahead in range(self._count):
            if ahead:
                # other ones, with which an item may choose other files
                (seeds,) = seeds_of(self.seed, task.epoch, np.array([seeded_by]), ahead)
            item = run_item(self._reader, self.dataset, (number + ahead) % self._count, seeds)
            self._check_form(item)

            bad += [
                BadPicture(item.number, one.key, name_picture(one, item.number), header.problem)
                for one, header in zip(item.encoded, item.headers, strict=True)
                if header.problem
            ]
            unusable = next(
                (
                    name_picture(one, item.number)
                    for one, header in zip(item.encoded, item.headers, strict=True)
                    if header.problem or (task.bad and one.key in task.bad)
                ),
                "",
            )
            if not unusable or self._most_bad is None:
                return item
            # with those that were known before, there are too many: the main process says so
            if len(task.bad) + len({each.key for each in bad} - task.bad) > self._most_bad:
                break

        raise _NoUsableItem(
            f"{ahead + 1:,} of {self._count:,} items of {_kind(self.dataset)}, from item {number} "
            f"on, have pictures that cannot be used, such as {unusable}"
        )

    def _check_form(self, item: Item) -> None:
        """Refuses an item that has another form or other pictures than the first item."""
        expected, found, number = self._pictures, item.encoded, item.number
        if len(found) != len(expected):
            raise ConfigError(
                f"item {number} of {_kind(self.dataset)} has {len(found)} Encoded, and the first "
                f"item had {len(expected)}; all items must have the same structure: leave a "
                "picture out by a value beside it, such as a weight of 0"
            )
        for at, (picture, encoded) in enumerate(zip(expected, found, strict=True)):
            # the same object, as a rule: comparing the options takes longer
            transform = self._default if encoded.transform is None else encoded.transform
            same = transform is picture.transform or transform is self._known[at]
            if not same and (same := are_alike(transform, picture.transform)):
                self._known[at] = transform
            if not same or encoded.draws != picture.draws:
                raise ConfigError(
                    f"the picture at {picture.place or 'the item itself'} of item {number} of "
                    f"{_kind(self.dataset)} has another transform or other draws than in the "
                    "first item; a place has one transform: return both pictures, and choose one "
                    "by a value beside them"
                )

        if self._form is None:
            return
        if difference := find_difference(self._form, form_of(item.skeleton)):
            place, first, other = difference
            raise ConfigError(
                f"item {number} of {_kind(self.dataset)} has {other} at "
                f"{place or 'the item itself'}, and the first item had {first}; all items must "
                "have the same structure, with values of the same kinds"
            )


class FirstItem(NamedTuple):
    """What `load` knows of the first item.

    Attributes:
        pictures: what its Encoded say; pickled, where it was run in a worker.
        form: as `form_of` makes it.
        images: the files of its pictures.
    """

    pictures: list[ItemPicture] | bytes
    form: Any
    images: LooseImages


def describe_item(dataset: Any, seed: int, task: ItemTask) -> FirstItem:
    """Runs one item.

    Raises:
        ConfigError: it has no pictures, or their transforms cannot be sent to the main process.
    """
    reader = ItemReader()
    with reader.block():
        (seeds,) = seeds_of(seed, task.epoch, task.ids)
        item = run_item(reader, dataset, int(task.ids[0]), seeds)

    if not item.encoded:
        raise ConfigError(
            f"item {task.ids[0]} of {_kind(dataset)} has no Encoded; return dp.Encoded(path) from "
            "__getitem__ where the picture is to be (a data set without pictures needs PyTorch's "
            "DataLoader only)"
        )
    values = collate_skeletons([item.skeleton], task.ids)
    pictures = [
        ItemPicture(place, one.transform, one.draws)
        for place, one in zip(places_of(values), item.encoded, strict=True)
    ]
    form, images = form_of(item.skeleton), images_of([item])
    if not get_worker_info():
        return FirstItem(pictures, form, images)
    try:
        return FirstItem(pickle.dumps(pictures), form, images)
    except Exception as error:  # pickle raises almost anything
        raise ConfigError(
            f"the transform of an Encoded cannot be sent between processes ({error}); give it to "
            "load(transform=…), or set num_workers=0"
        ) from None


class ItemDescriber(Dataset[Any]):
    """Describes an item in a worker, for `load`."""

    def __init__(self, dataset: Any, seed: int):
        self._dataset, self._seed = dataset, seed

    def __getitem__(self, task: ItemTask) -> Any:
        try:
            return describe_item(self._dataset, self._seed, task)
        except ConfigError as error:
            return error


def run_item(reader: ItemReader, dataset: Any, number: int, seeds: NDArray[np.uint32]) -> Item:
    """Runs one item with these seeds, and takes it apart."""
    reader.seed(seeds)
    try:
        skeleton, encoded = reader.read(dataset, number)
        return Item(number, skeleton, encoded, [header_of(one.source) for one in encoded])
    except StopIteration as error:
        # it would end the epoch as if the DataLoader had no more batches
        raise RuntimeError(
            f"item {number} of {_kind(dataset)} raised StopIteration, as next() does of an "
            "iterator that has ended"
        ) from error
    except ConfigError:
        raise
    except Exception as error:
        error.add_note(f"in item {number} of {_kind(dataset)}")
        raise


def seeds_of(seed: int, epoch: int, ids: NDArray[np.int64], tried: int = 0) -> NDArray[np.uint32]:
    """(N, 4) the seeds of each item: Python's, NumPy's, and PyTorch's in two words.

    Args:
        tried: how many items were tried at the place of this one before.
    """
    high = ids >> 32 << HIGH | Kind.ITEM
    return np.ascontiguousarray(philox4x32((ids & 0xFFFFFFFF, epoch, tried, high), seed).T)


def seed_generators(seeds: NDArray[np.uint32]) -> None:
    """Seeds the generators that the whole process shares: Python's, NumPy's and PyTorch's."""
    python, numpy, low, high = seeds.tolist()
    random.seed(python)
    np.random.seed(numpy)
    # not torch.manual_seed, which seeds all GPUs too
    torch.default_generator.manual_seed(low | high << 32)


def images_of(items: list[Item]) -> LooseImages:
    """The pictures of these items: all of the first place, then all of the second one."""
    each = [
        (item.encoded[place], item.headers[place], item.number)
        for place in range(len(items[0].encoded))
        for item in items
    ]
    return LooseImages.of(
        [name_picture(one, number) for one, _, number in each],
        [one.source if isinstance(one.source, bytes) else None for one, _, _ in each],
        [header for _, header, _ in each],
    )


def name_picture(encoded: Encoded, number: int) -> str:
    """What messages call a picture."""
    if isinstance(encoded.source, str):
        return encoded.source
    return f"{len(encoded.source):,} bytes in item {number}"


def _kind(dataset: Any) -> str:
    return type(dataset).__name__
