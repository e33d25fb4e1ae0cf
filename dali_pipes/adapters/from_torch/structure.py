"""The structure of a sample: where its pictures are, and what else is in it.

`take_apart` makes a skeleton of what a data set returns: the same tuples, lists, dicts, named
tuples and dataclasses, with a `PictureSlot` in place of each picture. `fill` puts pictures there.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image

from dali_pipes.adapters.from_torch.recording.marks import (
    Mark,
    Match,
    dtype_of,
    is_picture,
    kind_of,
)
from dali_pipes.adapters.from_torch.recording.visit import Visit


@dataclass(frozen=True, slots=True)
class PictureSlot:
    """The place of the nth picture of a sample."""

    number: int


# one object for all samples, since a data set may have millions of skeletons
@cache
def slot(number: int) -> PictureSlot:
    return PictureSlot(number)


# not frozen, which would make it three times as slow, and there is one for each sample
@dataclass(slots=True, eq=False)
class Shown:
    """What a sample has in a slot.

    Attributes:
        matches: the one picture, or those that are stacked along the first axis.
        is_stacked: whether it is a stack.
        kind: "pil", "tensor" or "array".
        dtype: the dtype of the values as text, or Pillow's mode.
    """

    matches: tuple[Match, ...]
    is_stacked: bool
    kind: str
    dtype: str

    @property
    def is_mask(self) -> bool:
        """Whether it shows a mask; a PIL image of one does not count."""
        return self.kind != "pil" and any(each.table is not None for each in self.matches)


# what is in a slot: the mark alone if it is a tensor as it was handed out
Found = Shown | Mark


def take_apart(value: Any, visit: Visit) -> tuple[Any, list[Found]]:
    """Returns the skeleton of a sample, and what is in its slots, in their order."""
    found: list[Found] = []
    pictures: list[Any] = []

    def leaf(value: Any) -> Any:
        # the usual labels first, which are in every sample
        kind = type(value)
        if kind is int or kind is str:
            return value
        # the same picture once more, as an autoencoder's input and target
        for number, other in enumerate(pictures):
            if other is value:
                return slot(number)
        # what a step returned, as in nearly all samples
        if kind is torch.Tensor and (mark := visit.find_still(value)) is not None:
            found.append(mark)
        # an array that shows no mark is data, such as a mask that was computed
        elif is_picture(value) and (shown := _show(value, visit)) is not None:
            found.append(shown)
        else:
            return value
        pictures.append(value)
        return slot(len(found) - 1)

    return rebuild(leaf, value), found


def show(found: Found) -> Shown:
    """What is in a slot, in full."""
    if isinstance(found, Shown):
        return found
    assert found.snapshot
    match = Match(found, "tensor", found.snapshot.layout)
    return Shown((match,), False, "tensor", found.snapshot.dtype)


def end_of(found: Found) -> tuple[Any, ...]:
    """What is in a slot, in a form that is compared with other visits."""
    # nearly all samples: the same as for `show`, without making it
    if type(found) is Mark:
        now: Any = found.snapshot
        return ("tensor", now.dtype, False, (found.number, now.layout, "same", None, None))
    shown = show(found)
    return (shown.kind, shown.dtype, shown.is_stacked, *map(_end_of, shown.matches))


def _end_of(match: Match) -> tuple[Any, ...]:
    # few digits, since fitted numbers have rounding errors
    scale = match.scale and " ".join(f"{each:.3e}" for each in match.line)
    table = match.table and match.table.key
    return (match.mark.number, match.layout, match.channels, scale, table)


def _show(value: Any, visit: Visit) -> Shown | None:
    dtype = dtype_of(value)
    if isinstance(value, Image.Image) or value.ndim < 4:
        match = visit.match(value)
        return Shown((match,), False, kind_of(value), dtype) if match else None

    # four axes are a stack of pictures, such as several crops of one
    matches = [visit.match(each) for each in value]
    if not all(matches):
        return None
    return Shown(tuple(each for each in matches if each), True, kind_of(value), dtype)


# the usual types of leaves, which are looked at first
_LEAVES = {PictureSlot, torch.Tensor, int, str, float, bool, type(None), np.ndarray, np.int64}


def rebuild(function: Callable[[Any], Any], value: Any) -> Any:
    """A copy of nested containers with `function` of each leaf."""
    kind = type(value)
    # a PictureSlot is a dataclass too, and is a leaf
    if kind in _LEAVES:
        return function(value)

    # the usual types first, since every sample passes here several times
    if kind is tuple or kind is list:
        return kind(
            [function(each) if type(each) in _LEAVES else rebuild(function, each) for each in value]
        )
    if kind is dict:
        return {key: rebuild(function, each) for key, each in value.items()}

    # a named tuple takes its values one by one, other tuples take an iterable
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(rebuild(function, each) for each in value))
    if isinstance(value, Mapping) or (
        isinstance(value, (tuple, list)) and not isinstance(value, (str, bytes))
    ):
        return _rebuild_other(function, value)

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # copied and filled: what __init__ does is for the values of the program
        made: Any = copy(value)
        for each in dataclasses.fields(value):
            if hasattr(value, each.name):
                # also where the dataclass is frozen
                object.__setattr__(made, each.name, rebuild(function, getattr(value, each.name)))
        return made

    return function(value)


def _rebuild_other(function: Callable[[Any], Any], value: Any) -> Any:
    """A copy of a container of another class, whose __init__ may take other arguments."""
    kind: Any = type(value)
    if isinstance(value, Mapping):
        filled = {key: rebuild(function, each) for key, each in value.items()}
        if not isinstance(value, MutableMapping):
            return kind(filled)
        made: Any = copy(value)
        made.update(filled)
        return made
    inside = [rebuild(function, each) for each in value]
    if not isinstance(value, list):
        return kind(inside)
    made = copy(value)
    made[:] = inside
    return made


def fill(skeleton: Any, pictures: Sequence[Any]) -> Any:
    """The sample with these pictures in its slots. Its containers, arrays and objects are new
    ones.
    """

    def leaf(value: Any) -> Any:
        if isinstance(value, PictureSlot):
            return pictures[value.number]
        # a collate function may write into them, and the skeleton serves every epoch
        if isinstance(value, torch.Tensor):
            return value.clone()
        if isinstance(value, np.ndarray):
            return value.copy()
        if type(value) in _LEAVES or isinstance(value, (bytes, np.generic)):
            return value
        # an object that cannot be copied, such as an open file, is shared
        with suppress(Exception):
            return deepcopy(value)
        return value

    return rebuild(leaf, skeleton)


def slots_in(skeleton: Any) -> Any:
    """Which slots are where in a skeleton, to be compared; None: there are none."""
    kind = type(skeleton)
    if kind is PictureSlot:
        return skeleton.number
    # the usual leaves first: all samples are compared
    if kind in _LEAVES:
        return None
    values: list[tuple[Any, Any]]
    if isinstance(skeleton, (tuple, list)):
        values = list(enumerate(skeleton))
    elif isinstance(skeleton, Mapping):
        values = list(skeleton.items())
    elif dataclasses.is_dataclass(skeleton) and not isinstance(skeleton, type):
        values = [(each.name, getattr(skeleton, each.name)) for each in dataclasses.fields(kind)]
    else:
        return None
    found = [(name, slots_in(each)) for name, each in values if type(each) is not int]
    return [each for each in found if each[1] is not None] or None


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """All leaves of nested containers, each with its place as Python writes it: "[0]['x']"."""
    if isinstance(value, Mapping):
        return [leaf for key, each in value.items() for leaf in leaves(each, f"{path}[{key!r}]")]
    if isinstance(value, (tuple, list)):
        return [leaf for at, each in enumerate(value) for leaf in leaves(each, f"{path}[{at}]")]
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, PictureSlot)):
        names = [each.name for each in dataclasses.fields(value)]
        return [leaf for name in names for leaf in leaves(getattr(value, name), f"{path}.{name}")]
    return [(path, value)]


def first_difference(
    one: Any, other: Any, done: dict[tuple[int, int], Any] | None = None
) -> str | None:
    """The place where two skeletons differ, as Python writes it; None: they are equal, and of equal
    types.

    Args:
        done: what was compared before, since objects may refer to each other in a circle.
    """
    # the usual cases first, since all samples are compared
    if one is other:
        return None
    kind = type(one)
    if kind is not type(other):
        return ""
    if kind is int or kind is str:
        return None if one == other else ""

    # kept beside their identities, which no other objects may get
    done = {} if done is None else done
    if (pair := (id(one), id(other))) in done:
        return None

    # tuple and list first, since it takes long to ask for the abstract class Mapping
    names: Sequence[Any]
    values: Iterable[tuple[Any, Any]]
    if isinstance(one, (tuple, list)):
        if len(one) != len(other):
            return ""
        names, form, values = range(len(one)), "[{}]", zip(one, other, strict=True)
    elif kind is dict or isinstance(one, Mapping):
        names, form = list(one), "[{!r}]"
        if names != list(other):
            return ""
        values = zip(one.values(), other.values(), strict=True)
    elif dataclasses.is_dataclass(one) and not isinstance(one, PictureSlot):
        names, form = [each.name for each in dataclasses.fields(one)], ".{}"
        values = ((getattr(one, name), getattr(other, name)) for name in names)
    else:
        return None if _are_equal(one, other) else ""

    done[pair] = one, other
    # the name of a place is made only where there is a difference
    for name, (ours, theirs) in zip(names, values, strict=True):
        if ours is theirs or (type(ours) is int is type(theirs) and ours == theirs):
            continue
        if (inside := first_difference(ours, theirs, done)) is not None:
            return form.format(name) + inside
    return None


def _are_equal(one: Any, other: Any) -> bool:
    """Whether two leaves of one type are equal; NaN equals NaN."""
    try:
        return _are_equal_leaves(one, other)
    except Exception:  # an object that cannot be compared
        return False


def _are_equal_leaves(one: Any, other: Any) -> bool:
    # torch.equal says that NaN differs from NaN, so NaN becomes 0 in both
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and torch.equal(one.nan_to_num(), other.nan_to_num())
            if one.is_floating_point()
            else one.dtype == other.dtype and torch.equal(one, other)
        )

    if isinstance(one, (np.ndarray, np.generic)):
        same = one.dtype == other.dtype and one.shape == other.shape
        return bool(same and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
    if isinstance(one, Image.Image):
        return one.mode == other.mode and one.tobytes() == other.tobytes()

    if isinstance(one, float):
        return one == other or (one != one and other != other)
    return bool(one == other)
