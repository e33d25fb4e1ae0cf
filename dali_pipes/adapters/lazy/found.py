"""The things in a batch that wait, whatever its structure."""

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from operator import is_not
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import PIL.Image
import torch

from dali_pipes.adapters.lazy.cells import Waiting
from dali_pipes.adapters.lazy.pictures import finish, is_lazy
from dali_pipes.adapters.lazy.reach import attributes_of
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.tensors import lazy_of

# nothing that waits is in them
_CLOSED = (str, bytes, int, float, type(None), torch.Tensor, type, FunctionType, ModuleType)
_CONTAINERS = (dict, list, tuple, set, frozenset, deque, np.ndarray)
# how deep a batch is looked into; attributes of objects, which may lead anywhere, count more
_DEEPEST, _OF_AN_OBJECT = 64, 8


class WaitingParts:
    """The lazy things in a batch, whatever its structure.

    Attributes:
        cells: those to be made.
        waited: how many pictures, of how many `sources`.
    """

    def __init__(self, batch: Any):
        self.batch = batch
        self._things: dict[int, Any] = {}
        self._walk(batch, set())
        for each in self._things.values():
            # a part of a cell that came alone
            if isinstance(each, Waiting) and each.path and each.cell.arrived == 1:
                each.leave()
        cells = {
            id(each.cell): each.cell
            for each in self._things.values()
            if isinstance(each, Waiting) and each.waits
        }
        self.cells = list(cells.values())
        recipes = [row for cell in self.cells for row in cell.rows if isinstance(row, Recipe)]
        self.waited, self.sources = len(recipes), len({id(recipe.source) for recipe in recipes})

    def _walk(self, value: Any, known: set[int], depth: int = 0) -> None:
        tensor = lazy_of(value)
        if tensor is not None or isinstance(value, Waiting) or is_lazy(value):
            self._things[id(value)] = value if tensor is None else tensor
        elif depth < _DEEPEST and not _is_closed(value) and id(value) not in known:
            known.add(id(value))
            deeper = depth + 1 if isinstance(value, _CONTAINERS) else depth + _OF_AN_OBJECT
            for each in _parts(value):
                self._walk(each, known, deeper)

    def true(self) -> Any:
        """The batch with true things. Containers are new ones; objects of other classes stay, and
        get them as attributes.
        """
        if not self._things:
            return self.batch
        return _Replaced(self._true_of)(self.batch)

    def _true_of(self, value: Any) -> Any:
        if id(value) not in self._things:
            return _NOTHING
        thing = self._things[id(value)]
        return finish(thing) if isinstance(thing, PIL.Image.Image) else thing.true()


def _is_closed(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    return isinstance(value, _CLOSED)


def _parts(value: Any) -> Iterable[Any]:
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = itertools.chain(value, value.values())
    elif isinstance(value, np.ndarray):
        parts = value.flat
    elif isinstance(value, partial):
        parts = value.args, value.keywords
    elif isinstance(value, _CONTAINERS):
        parts = value
    if type(value) in _CONTAINERS:
        return parts
    # a container of a class of the program's may have more than it contains
    return itertools.chain(parts, attributes_of(value).values())


def true_pictures(samples: Any) -> Any:
    """Pillow's pictures are made here, by many workers at once."""
    found = WaitingParts(samples)
    found._things = {key: each for key, each in found._things.items() if is_lazy(each)}
    return found.true()


_MOST_NUMBERS = 64


def digest_of(sample: Any, depth: int = 3) -> int:
    """Of names and whole numbers in a sample, by which samples can be told apart in this process.
    Other numbers may be random ones.
    """
    if isinstance(sample, (str, bytes, int, np.integer)):
        return hash(sample)
    if type(sample) in (torch.Tensor, np.ndarray) and _may_tell(sample):
        return hash(tuple(np.asarray(sample).ravel().tolist()))
    if depth and isinstance(sample, dict):
        return hash(tuple((hash(key), digest_of(sample[key], depth - 1)) for key in sample))
    if depth and isinstance(sample, (list, tuple)):
        return hash(tuple(digest_of(each, depth - 1) for each in sample))
    return 0


def _may_tell(values: Any) -> bool:
    """Whether they are a few whole numbers, such as a label."""
    if lazy_of(values) is not None or len(values.shape) > 1 or values.shape[:1] > (_MOST_NUMBERS,):
        return False
    return np.asarray(values).dtype.kind in "biu"


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with all of its tensors on a device."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if value.device == device else value.to(device, non_blocking=True)
        # a packed sequence, or a batch of another library, knows which parts are to be moved; the
        # value itself may take any name for a key, so its class is asked
        to = getattr(type(value), "to", None)
        if not callable(to):
            return _NOTHING
        new = to(value, device)
        return value if new is None else new  # it has moved what it holds

    return _Replaced(move)(batch)


_NOTHING = object()


class _Replaced:
    """Makes batches in which something else is in some places.

    Args:
        instead: of a value; `_NOTHING`: it stays, and what is in it is looked at.
    """

    # a class: a function in a function that calls itself would keep the batch until garbage is
    # collected
    def __init__(self, instead: Callable[[Any], Any]):
        self._instead = instead
        self._made: dict[int, Any] = {}  # by the ids of what was there

    def __call__(self, value: Any, depth: int = 0) -> Any:
        made, of = self._made, self
        if id(value) in made:
            return made[id(value)]
        new = self._instead(value)
        if new is not _NOTHING:
            made[id(value)] = new
            return new
        if depth >= _DEEPEST or _is_closed(value):
            return value

        if isinstance(value, dict):
            made[id(value)] = new = copy.copy(value)
            new.clear()
            for key, each in value.items():
                new[of(key, depth + 1)] = of(each, depth + 1)
        elif isinstance(value, tuple):
            parts, new = [of(each, depth + 1) for each in value], value
            if any(map(is_not, parts, value)):
                new = type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
            made[id(value)] = new
        elif isinstance(value, (set, frozenset)):
            made[id(value)] = new = type(value)(of(each, depth + 1) for each in value)
        elif isinstance(value, (list, deque)):
            made[id(value)] = new = copy.copy(value)
            new.clear()
            new.extend([of(each, depth + 1) for each in value])
        elif isinstance(value, np.ndarray):
            made[id(value)] = new = value.copy()
            for at in range(value.size):
                new.flat[at] = of(value.flat[at], depth + 1)
        elif isinstance(value, partial):
            args, options = (of(each, depth + 1) for each in (value.args, value.keywords))
            made[id(value)] = new = partial(value.func, *args, **options)
        else:
            made[id(value)] = new = value
        if type(value) not in _CONTAINERS:
            for name, each in attributes_of(value).items():
                if (part := of(each, depth + _OF_AN_OBJECT)) is not each:
                    object.__setattr__(new, name, part)  # also of frozen ones
        return new
