"""Notices that a data set or its sampler was changed after `from_torch` has read it: `HeldState`.

A training program may give its data set another transform after some epochs, or its sampler other
weights. The new loader would go on as before, and nobody would see it.
"""

import functools
import operator
import sys
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.from_torch.recording.objects import attributes_of, is_a, is_own
from dali_pipes.adapters.from_torch.recording.random_states import generator_state
from dali_pipes.errors import ConfigError

_DEEPEST = 6  # levels of objects
_SHORT = 64  # a longer list or dict holds paths or labels, and no objects
_LARGEST = 16 << 20  # bytes of an array whose values are compared
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# a sampler's epoch is set each epoch, and is that of the old order
_MOVING = {"epoch", "generator"}
# where albumentations' steps keep what they have drawn
_DRAWN = "albumentations", {"params", "_images_was_list", "_masks_was_list"}


class HeldState:
    """What a data set and its sampler hold, as far as samples may depend on it.

    Args:
        moving: names of attributes that the data set's own code changes.
    """

    def __init__(self, dataset: Any, sampler: Any, moving: set[str]):
        self._roots = ("dataset", dataset), ("sampler", sampler)
        self._moving = moving | _MOVING
        self._known = self._look()

    def refuse_changes(self) -> None:
        """Raises a ConfigError if something has changed since this was made."""
        now = self._look()
        for place in sorted(self._known.keys() | now.keys(), key=lambda each: (len(each), each)):
            if (
                place not in now
                or place not in self._known
                or not _same(self._known[place], now[place])
            ):
                raise ConfigError(
                    f"{place} has changed since from_torch has read it, and this loader would go "
                    "on with what it was; change it before from_torch, or call from_torch again "
                    "with the DataLoader after the change"
                )

    def _look(self) -> dict[str, Any]:
        seen: dict[int, Any] = {}
        return {
            place: value
            for name, root in self._roots
            for place, value in self._facts(name, root, 0, seen)
        }

    def _facts(
        self, place: str, value: Any, depth: int, seen: dict[int, Any]
    ) -> Iterator[tuple[str, Any]]:
        """Yields what a value holds, each with its place as Python writes it."""
        if is_a(value, (*_PLAIN, type, ModuleType)):
            yield place, value
            return
        if depth > _DEEPEST or id(value) in seen or generator_state(value) is not None:
            return
        seen[id(value)] = value

        inner: Iterator[tuple[str, Any]] = iter(())
        if is_a(value, (list, tuple, dict, set)):
            yield place, _members(value)
            if len(value) <= _SHORT and not is_a(value, set):
                pairs = value.items() if is_a(value, dict) else enumerate(value)
                inner = ((f"{place}[{key!r}]", each) for key, each in pairs)
        elif is_a(value, (np.ndarray, torch.Tensor)):
            yield place, (value, _contents(value))
        elif is_a(value, FunctionType):
            yield place, value.__code__
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
            inner = ((f"{name} in {place}", _content(cell)) for name, cell in cells)
        elif is_a(value, MethodType):
            inner = iter([(place, value.__self__)])
        elif is_a(value, functools.partial):
            inner = iter([(place, each) for each in (value.func, value.args, value.keywords)])
        elif _has_facts(value):
            yield place, type(value)
            inner = (
                (f"{place}.{name}", each)
                for name, each in list(vars(value).items())
                if name not in self._moving and not _is_drawn(value, name)
            )
        for name, each in inner:
            yield from self._facts(name, each, depth + 1, seen)


def _has_facts(value: Any) -> bool:
    """Whether an object is a transform, a sampler, a data set, or of one of the user's classes."""
    if attributes_of(value) is None:
        return False
    name = type(value).__module__
    known = name.partition(".")[0] in ("torchvision", "timm", "albumentations")
    kinds = torch.utils.data.Dataset, torch.utils.data.Sampler, torch.nn.Module
    return known or is_a(value, kinds) or is_own(sys.modules.get(name))


def _is_drawn(value: Any, name: str) -> bool:
    return type(value).__module__.partition(".")[0] == _DRAWN[0] and name in _DRAWN[1]


def _members(value: Any) -> tuple[type, tuple[Any, ...]]:
    members = (*value, *value.values()) if isinstance(value, dict) else tuple(value)
    return type(value), members


def _contents(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.nbytes > _LARGEST:
            return value._version
        value = (
            value.detach().contiguous().view(torch.uint8).numpy() if value.ndim else value.item()
        )
        return value if not isinstance(value, np.ndarray) else hash(value.tobytes())
    return hash(value.tobytes()) if value.nbytes <= _LARGEST and not value.dtype.hasobject else 0


def _content(cell: Any) -> Any:
    # the cell of a variable that has no value yet raises ValueError
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], type):
        # members by identity: a data set has as many as it has samples
        return (
            one[0] is other[0]
            and len(one[1]) == len(other[1])
            and all(map(operator.is_, one[1], other[1]))
        ) or _equal_members(one[1], other[1])
    if isinstance(one, tuple):
        return one[0] is other[0] and one[1] == other[1]
    return bool(one is other or one == other or (one != one and other != other))


def _equal_members(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether members are the same objects, or equal plain values."""
    return len(one) == len(other) and all(
        a is b or (isinstance(a, _PLAIN) and type(a) is type(b) and a == b)
        for a, b in zip(one, other, strict=True)
    )
