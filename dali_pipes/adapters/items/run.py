"""Runs the items of planned batches: `ItemRunner`, the data set of a DataLoader whose workers make
whole batches.

Before each item the generators that the whole process shares are seeded by (seed, epoch, id), so
that an item does not depend on what ran before it. Its `Encoded` are taken out, and the headers of
their files are read. The rest is collated as PyTorch's default_collate does. What goes back to the
main process is an `ItemBatch`: paths, sizes and values, no pixels.
"""

import os
import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from dali_pipes.adapters.from_torch.recording.untouched import states_kept
from dali_pipes.adapters.from_torch.structure import PictureSlot, leaves, rebuild, slot
from dali_pipes.adapters.items.encoded import Encoded
from dali_pipes.adapters.items.transform import ItemPicture
from dali_pipes.data.image_files.headers import Header, examine, read_header
from dali_pipes.data.loose_images import LooseImages
from dali_pipes.errors import ConfigError
from dali_pipes.plan.philox import HIGH, Kind, philox4x32
from dali_pipes.plan.transforms import Transform

_HEADERS = 2**20  # of files, that a process keeps
_TRIES = 64  # items that are tried at the place of one that cannot be used


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
    """

    epoch: int
    ids: NDArray[np.int64]
    bad: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ItemBatch:
    """N items that were run.

    Attributes:
        values: the collated items, with a `PictureSlot` in place of each picture.
        images: the pictures: all N of the first place, then all of the second one.
        bad: pictures that cannot be used. Their items were replaced by others if that is wanted;
            else there are no values.
        error: what is wrong with the items; None: nothing.
    """

    values: Any
    images: LooseImages
    bad: list[BadPicture]
    error: ConfigError | None = None


class _Item(NamedTuple):
    skeleton: Any
    encoded: list[Encoded]
    headers: list[Header]


class ItemRunner(Dataset[ItemBatch]):
    """
    Args:
        pictures: those that every item has.
        default: the transform of an Encoded that names none.
        substitutes: whether an item with a bad picture is replaced: by the item after it in the
            data set, so that the replacement does not depend on the batch.
    """

    def __init__(
        self,
        dataset: Any,
        seed: int,
        pictures: Sequence[ItemPicture],
        default: Transform | None,
        substitutes: bool,
    ):
        self.dataset, self.seed = dataset, seed
        self._pictures, self._default, self._substitutes = pictures, default, substitutes
        self._count = len(dataset)

    def __getitem__(self, task: ItemTask) -> ItemBatch:
        try:
            with _own_states():
                return self._run(task)
        except ConfigError as error:
            # as a value: what a worker raises reaches the user with the worker's traceback as text
            return ItemBatch(None, _NO_IMAGES, [], error)

    def _run(self, task: ItemTask) -> ItemBatch:
        bad: list[BadPicture] = []
        seeds = seeds_of(self.seed, task.epoch, task.ids)
        each_id = zip(task.ids.tolist(), seeds, strict=True)
        items = [self._usable_item(number, words, task, bad) for number, words in each_id]
        if bad and not self._substitutes:
            return ItemBatch(None, _NO_IMAGES, bad)

        values = collate_skeletons([item.skeleton for item in items], task.ids)
        self._check_places(values)
        return ItemBatch(values, _images_of(items, task.ids), bad)

    def _usable_item(
        self, number: int, seeds: NDArray[np.uint32], task: ItemTask, bad: list[BadPicture]
    ) -> _Item:
        """The item of this id; if it cannot be used, the next one in the data set that can be.

        Adds what cannot be used to `bad`.
        """
        tries = min(_TRIES, self._count) if self._substitutes else 1
        for ahead in range(tries):
            other = (number + ahead) % self._count
            if ahead:
                # other ones, with which an item may choose other files
                (seeds,) = seeds_of(self.seed, task.epoch, np.array([number]), ahead)
            item = run_item(self.dataset, other, seeds)
            self._check_form(other, item)

            problems = [
                BadPicture(number, one.key, _name(one, other), header.problem)
                for one, header in zip(item.encoded, item.headers, strict=True)
                if header.problem
            ]
            bad += problems
            known = bool(task.bad) and any(one.key in task.bad for one in item.encoded)
            if not self._substitutes or not (problems or known):
                return item

        raise ConfigError(
            f"items {number} to {number + tries - 1} of {_kind(self.dataset)} have pictures that "
            f"cannot be used, such as {bad[-1].name if bad else 'those named before'}"
        )

    def _check_form(self, number: int, item: _Item) -> None:
        """Refuses an item whose pictures are not those of the first item."""
        expected, found = self._pictures, item.encoded
        if len(found) != len(expected):
            raise ConfigError(
                f"item {number} of {_kind(self.dataset)} has {len(found)} Encoded, and the first "
                f"item had {len(expected)}; all items must have the same structure: leave a "
                "picture out by a value beside it, such as a weight of 0"
            )
        for picture, encoded in zip(expected, found, strict=True):
            # the same object, as a rule: comparing the options takes longer
            transform = self._default if encoded.transform is None else encoded.transform
            same = transform is picture.transform or transform == picture.transform
            if not same or encoded.draws != picture.draws:
                raise ConfigError(
                    f"the picture at {picture.place or 'the item itself'} of item {number} of "
                    f"{_kind(self.dataset)} has another transform or other draws than in the "
                    "first item; a place has one transform: return both pictures, and choose one "
                    "by a value beside them"
                )

    def _check_places(self, values: Any) -> None:
        places = places_of(values)
        expected = [picture.place for picture in self._pictures]
        if places != expected:
            raise ConfigError(
                f"the items of {_kind(self.dataset)} have pictures at {', '.join(places)}, and "
                f"the first item at {', '.join(expected)}; all items must have the same structure"
            )


def describe_item(dataset: Any, seed: int, task: ItemTask) -> tuple[bytes, LooseImages]:
    """Runs one item, and returns its pictures, pickled, and their files.

    Raises:
        ConfigError: it has none, or their transforms cannot be sent to the main process.
    """
    with _own_states():
        (seeds,) = seeds_of(seed, task.epoch, task.ids)
        item = run_item(dataset, int(task.ids[0]), seeds)

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
    try:
        return pickle.dumps(pictures), _images_of([item], task.ids)
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


def run_item(dataset: Any, number: int, seeds: NDArray[np.uint32]) -> _Item:
    """Runs one item with these seeds, and takes it apart."""
    seed_generators(seeds)
    try:
        value = dataset[number]
    except Exception as error:
        error.add_note(f"in item {number} of {_kind(dataset)}")
        raise

    encoded: list[Encoded] = []

    def take_out(leaf: Any) -> Any:
        if not isinstance(leaf, Encoded):
            return leaf
        encoded.append(leaf)
        return slot(len(encoded) - 1)

    skeleton = rebuild(take_out, value)
    return _Item(skeleton, encoded, [header_of(one.source) for one in encoded])


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


def _own_states() -> AbstractContextManager[None]:
    """A block with random states of its own: in a worker they belong to nobody else."""
    return nullcontext() if get_worker_info() else states_kept()


def header_of(source: str | bytes) -> Header:
    """The header of an image; that of a file is read again only if the file has changed."""
    if isinstance(source, bytes):
        return examine(BytesIO(source), len(source), 0)
    try:
        stat = os.stat(source)
    except OSError:
        return read_header(source)
    return _header_of_file(source, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=_HEADERS)
def _header_of_file(path: str, size: int, mtime_ns: int) -> Header:
    return read_header(path)


def _images_of(items: list[_Item], ids: NDArray[np.int64]) -> LooseImages:
    """The pictures of these items: all of the first place, then all of the second one."""
    each = [
        (item.encoded[place], item.headers[place], number)
        for place in range(len(items[0].encoded))
        for item, number in zip(items, ids.tolist(), strict=True)
    ]
    return LooseImages(
        [_name(one, number) for one, _, number in each],
        [one.source if isinstance(one.source, bytes) else None for one, _, _ in each],
        # one pixel for what has no size, in the item that only `load` looks at
        np.array([(header.height or 1, header.width or 1) for _, header, _ in each], np.int64),
        np.array([header.orientation for _, header, _ in each], np.int8),
    )


_NO_IMAGES = LooseImages([], [], np.zeros((0, 2), np.int64), np.zeros(0, np.int8))


def _name(encoded: Encoded, number: int) -> str:
    """What messages call a picture."""
    if isinstance(encoded.source, str):
        return encoded.source
    return f"{len(encoded.source):,} bytes in item {number}"


def collate_skeletons(skeletons: list[Any], ids: NDArray[np.int64]) -> Any:
    """The skeletons of items joined as PyTorch's default_collate does; dataclasses too.

    Raises:
        ConfigError: they do not fit together, or a value is of a kind that it does not join.
    """
    known = dict(default_collate_fn_map)
    known |= dict.fromkeys(_dataclasses_in(skeletons[0]), _collate_fields)
    known[PictureSlot] = _collate_slots
    try:
        return collate(skeletons, collate_fn_map=known)
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        numbers = ids.tolist()
        what = f"item {numbers[0]}" if len(numbers) == 1 else f"items {numbers[0]}, {numbers[1]}, …"
        text = " ".join(str(error).split())
        raise ConfigError(
            f"{what}: PyTorch's default_collate cannot join what they return ({text[:300]}); "
            "return numbers, texts, arrays and tensors of equal shapes in the same structure"
        ) from None


def _collate_slots(slots: Any, *, collate_fn_map: Any = None) -> PictureSlot:
    first: PictureSlot = slots[0]
    if any(each is not first for each in slots):
        raise TypeError("a picture is at another place in some of them, or missing there")
    return first


def _collate_fields(values: Any, *, collate_fn_map: Any = None) -> Any:
    """One dataclass whose fields are those of all `values`, joined."""
    first = values[0]
    if any(type(each) is not type(first) for each in values):
        raise TypeError(f"some are {type(first).__name__}, and others are not")
    joined = {
        each.name: collate(
            [getattr(value, each.name) for value in values], collate_fn_map=collate_fn_map
        )
        for each in fields(first)
    }
    made = object.__new__(type(first))
    # as `copy` does: __init__ and __post_init__ were written for the values of one item
    for name, value in joined.items():
        object.__setattr__(made, name, value)
    return made


def _dataclasses_in(value: Any) -> Iterator[type]:
    """The types of all dataclasses in nested containers."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _dataclasses_in(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _dataclasses_in(each)
    elif is_dataclass(value) and not isinstance(value, (type, PictureSlot)):
        yield type(value)
        for field in fields(value):
            yield from _dataclasses_in(getattr(value, field.name))


def places_of(values: Any) -> list[str]:
    """Where the pictures are, in the order of their slots, as Python writes it."""
    found = [(leaf, place) for place, leaf in leaves(values) if isinstance(leaf, PictureSlot)]
    return [place for _, place in sorted(found, key=lambda each: each[0].number)]


def _kind(dataset: Any) -> str:
    return type(dataset).__name__
