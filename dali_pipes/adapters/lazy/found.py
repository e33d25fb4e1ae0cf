"""The things in a batch that wait, whatever its structure."""

import copy
from collections import deque
from collections.abc import Callable
from operator import is_not
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import PIL.Image
import torch

from dali_pipes.adapters.lazy.cells import Waiting
from dali_pipes.adapters.lazy.pictures import finish, is_lazy
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.tensors import lazy_of

# nothing that waits is in them
_CLOSED = (
    *(str, bytes, int, float, type(None), torch.Tensor, np.ndarray),
    *(type, FunctionType, ModuleType),
)
_DEEPEST = 8  # levels of a batch


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
        elif depth < _DEEPEST and not isinstance(value, _CLOSED) and id(value) not in known:
            known.add(id(value))
            for each in _parts(value):
                self._walk(each, known, depth + 1)

    def true(self) -> Any:
        """The batch with true things. Containers are new ones; objects of other classes stay, and
        get them as attributes.
        """
        if not self._things:
            return self.batch
        return _replaced(self.batch, self._true_of)

    def _true_of(self, value: Any) -> Any:
        if id(value) not in self._things:
            return _NOTHING
        thing = self._things[id(value)]
        return finish(thing) if isinstance(thing, PIL.Image.Image) else thing.true()


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return value
    return vars(value).values() if hasattr(value, "__dict__") else ()


def true_pictures(samples: Any) -> Any:
    """Pillow's pictures are made here, by many workers at once."""
    found = WaitingParts(samples)
    found._things = {key: each for key, each in found._things.items() if is_lazy(each)}
    return found.true()


def digest_of(sample: Any, depth: int = 3) -> int:
    """Of names and whole numbers in a sample, by which samples can be told apart in this process.
    Other numbers may be random ones.
    """
    if isinstance(sample, (str, bytes, int)):
        return hash(sample)
    if depth and isinstance(sample, dict):
        return hash(tuple((hash(key), digest_of(sample[key], depth - 1)) for key in sample))
    if depth and isinstance(sample, (list, tuple)):
        return hash(tuple(digest_of(each, depth - 1) for each in sample))
    return 0


def moved(batch: Any, device: torch.device) -> Any:
    """The batch with all of its tensors on a device."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value if value.device == device else value.to(device, non_blocking=True)
        # a packed sequence, or a batch of another library, knows which parts are to be moved
        return value.to(device) if callable(getattr(value, "to", None)) else _NOTHING

    return _replaced(batch, move)


_NOTHING = object()


def _replaced(
    value: Any,
    instead: Callable[[Any], Any],
    made: dict[int, Any] | None = None,
    depth: int = 0,
) -> Any:
    """A batch in which something else is in some places.

    Args:
        instead: of a value; `_NOTHING`: it stays, and what is in it is looked at.
        made: what has become of values, by their `id()`.
        depth: how many containers it is in.
    """
    made = {} if made is None else made
    if id(value) in made:
        return made[id(value)]
    new = instead(value)
    if new is not _NOTHING:
        made[id(value)] = new
        return new
    if depth == _DEEPEST or isinstance(value, _CLOSED):
        return value

    def of(each: Any) -> Any:
        return _replaced(each, instead, made, depth + 1)

    if isinstance(value, dict):
        made[id(value)] = new = copy.copy(value)
        new.update({key: of(each) for key, each in value.items()})
    elif isinstance(value, tuple):
        parts, new = list(map(of, value)), value
        if any(map(is_not, parts, value)):
            new = type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        made[id(value)] = new
    elif isinstance(value, (set, frozenset)):
        made[id(value)] = new = type(value)(map(of, value))
    elif isinstance(value, (list, deque)):
        made[id(value)] = new = copy.copy(value)
        new.clear()
        new.extend(list(map(of, value)))
    elif hasattr(value, "__dict__"):
        made[id(value)] = new = value
        vars(value).update({name: of(each) for name, each in vars(value).items()})
    else:
        new = value
    return new
