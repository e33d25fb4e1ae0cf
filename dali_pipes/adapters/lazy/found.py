"""The things in a batch that wait, whatever its structure."""

import copy
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.lazy.cells import Cell, Waiting
from dali_pipes.adapters.lazy.pictures import is_lazy, materialize
from dali_pipes.adapters.lazy.recipes import Recipe

_CLOSED = (
    str,
    bytes,
    int,
    float,
    type(None),
    torch.Tensor,
    np.ndarray,
    type,
    FunctionType,
    ModuleType,
)  # nothing lazy is in them
_DEEPEST = 8  # levels of a batch


def make_all(cells: list[Cell]) -> None:
    """Carries all out as it was noted."""
    for cell in cells:
        cell.make()


class Found:
    """The lazy things in a batch, whatever its structure.

    Attributes:
        cells: those to be made.
        waited: how many pictures, of how many `sources`.
    """

    def __init__(self, batch: Any):
        self.batch = batch
        self._things: dict[int, Any] = {}
        self._walk(batch, set())
        cells = {
            id(each.cell): each.cell
            for each in self._things.values()
            if isinstance(each, Waiting) and each.waits
        }
        self.cells = list(cells.values())
        recipes = [row for cell in self.cells for row in cell.rows if isinstance(row, Recipe)]
        self.waited, self.sources = len(recipes), len({id(recipe.source) for recipe in recipes})

    def _walk(self, value: Any, known: set[int], depth: int = 0) -> None:
        if isinstance(value, Waiting) or is_lazy(value):
            self._things[id(value)] = value
        elif depth < _DEEPEST and not isinstance(value, _CLOSED) and id(value) not in known:
            known.add(id(value))
            for each in _parts(value):
                self._walk(each, known, depth + 1)

    def true(self) -> Any:
        """The batch with true things; containers are new ones, but for those of unknown classes, which get them."""
        if not self._things:
            return self.batch
        return self._true(self.batch, {})

    def _true(self, value: Any, made: dict[int, Any]) -> Any:
        if id(value) in made:
            return made[id(value)]
        if id(value) in self._things:
            if is_lazy(value):
                materialize(value)
                made[id(value)] = value
            else:
                made[id(value)] = value.true()
        elif isinstance(value, dict):
            made[id(value)] = same = copy.copy(value)
            same.update({key: self._true(each, made) for key, each in value.items()})
        elif isinstance(value, tuple):
            parts = [self._true(each, made) for each in value]
            made[id(value)] = (
                type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
            )
        elif isinstance(value, list):
            made[id(value)] = same = copy.copy(value)
            same[:] = [self._true(each, made) for each in value]
        elif hasattr(value, "__dict__") and not isinstance(value, _CLOSED):
            made[id(value)] = value
            vars(value).update({key: self._true(each, made) for key, each in vars(value).items()})
        return made.get(id(value), value)


def _parts(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, (list, tuple, set)):
        return value
    return vars(value).values() if hasattr(value, "__dict__") else ()


def true_pictures(samples: Any) -> Any:
    """Pillow's pictures are made here, by many workers at once."""
    found = Found(samples)
    found._things = {key: each for key, each in found._things.items() if is_lazy(each)}
    return found.true()
