"""`ItemTransform`: what is made of the pictures of an item."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NoReturn, Self, cast

import numpy as np
import torch

from dali_pipes.data.loose_images import NO_IMAGES
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError, OptionError
from dali_pipes.plan.transforms import Transform


@dataclass(frozen=True, slots=True)
class ItemPicture:
    """One picture of every item.

    Attributes:
        place: where it is in an item, as Python writes it: "[0]['image']".
        transform: what is made of it; None: not known yet.
        draws: the name of its random numbers; None: they are its own.
    """

    place: str
    transform: Transform | None
    draws: str | None

    @property
    def views(self) -> int:
        """How many views are made of it."""
        return sum(len(group) for group in self.transform.groups) if self.transform else 0


@dataclass(kw_only=True, slots=True)
class ItemTransform(Transform):
    """The transforms of the pictures of an item, each in its place.

    A plan of items has no images, and so no geometry: its planned batches have ids only. The
    backend of items plans their pictures when it knows their files.

    Attributes:
        pictures: in the order of their places.
    """

    pictures: list[ItemPicture] = field(default_factory=list)

    @classmethod
    def of(cls, pictures: Sequence[ItemPicture], default: Transform | None) -> Self:
        """Gives each picture its transform.

        Args:
            default: of those that have none of their own.

        Raises:
            ConfigError: a picture has no transform, or the default none that needs it; pictures
                with the same random numbers have another number of views; or a transform is of a
                kind that items cannot have.
        """
        own = [each for each in pictures if each.transform is not None]
        if default is not None and len(own) == len(pictures):
            raise ConfigError(
                "transform is given twice: to load, and to every Encoded; leave one of them out"
            )
        if default is None and len(own) < len(pictures):
            place = next(each.place for each in pictures if each.transform is None)
            raise ConfigError(
                f"the picture at {place or 'the item itself'} has no transform; give one to load, "
                "or to its Encoded"
            )

        complete = [replace(each, transform=each.transform or default) for each in pictures]
        for each in complete:
            _refuse_unfit(each.transform)
        for name in {each.draws for each in complete} - {None}:
            alike = [each for each in complete if each.draws == name]
            if len({each.views for each in alike}) > 1:
                raise ConfigError(
                    f"the pictures with draws={name!r} ({', '.join(map(_place, alike))}) have "
                    "another number of views each; give them transforms with equally many"
                )
        return cls(pictures=complete)

    @property
    def training(self) -> bool:
        return any(each.transform.training for each in self.pictures if each.transform)

    @property
    def groups(self) -> tuple[tuple[Transform, ...], ...]:
        return ()

    def geometry(self, source: Any, draws: Any) -> NoReturn:
        raise NotImplementedError("an item has no pixels of its own")

    @property
    def first_views(self) -> list[int]:
        """The number of the first view of each picture, counted over all pictures of an item.

        Pictures with the same draws have the same numbers.
        """
        known: dict[str, int] = {}
        numbers, count = [], 0
        for each in self.pictures:
            if each.draws is not None and each.draws in known:
                numbers.append(known[each.draws])
                continue
            numbers.append(count)
            if each.draws is not None:
                known[each.draws] = count
            count += each.views
        return numbers


def _place(picture: ItemPicture) -> str:
    return picture.place or "the item itself"


def _refuse_unfit(transform: Any) -> None:
    if getattr(transform, "sizes", None):
        raise OptionError(
            type(transform),
            "sizes changes the size of the images from an epoch on, which a loader of items does "
            "not do; build a loader for each size, and go on with set_epoch()",
        )
    if transform.pads_batches:
        raise OptionError(
            type(transform),
            "pads images to the largest of a batch, which a loader of items does not do; take a "
            "transform that makes images of one size",
        )
    # those that need boxes or the like; sizes are checked when the files are known
    transform.check(cast(Manifest, NO_IMAGES))


def are_alike(one: Transform | None, other: Transform | None) -> bool:
    """Whether two transforms are equal by what they hold.

    The functions of an Augment are compared too, which are often objects without an __eq__, such
    as modules of torchvision: a copy of one is equal to it.
    """
    try:
        return _are_equal(one, other)
    except (RecursionError, ValueError):  # a function that refers to itself, or to nothing yet
        return False


def _are_equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_are_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_are_equal, one, other))

    parts = _parts_of(one)
    return bool(one == other) if parts is None else _are_equal(parts, _parts_of(other))


def _parts_of(value: Any) -> Any:
    """What decides what an object does; None: its own __eq__ knows."""
    if isinstance(value, type):
        return None
    if is_dataclass(value):
        return [getattr(value, each.name) for each in fields(value) if each.compare]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, cells, vars(value)]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    compares: Any = type(value).__eq__
    return vars(value) if compares is object.__eq__ and hasattr(value, "__dict__") else None
