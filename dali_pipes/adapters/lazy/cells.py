"""Memory that waits. Whatever shares memory in the program shares a cell."""

from typing import Any, NamedTuple

import torch

from dali_pipes.adapters.lazy.looks import blame
from dali_pipes.adapters.lazy.recipes import COOKS, Recipe
from dali_pipes.adapters.lazy.state import PROCESS


class View(NamedTuple):
    """How something looks into a cell: a step, and what it means for the recipes.

    Attributes:
        step: on all of the cell: its name and arguments.
        rows: which of the recipes are left.
        each: the step on one of them; None: none.
    """

    step: tuple[Any, ...]
    rows: slice = slice(None)
    each: tuple[Any, ...] | None = None


class Cell:
    """Memory that waits.

    Attributes:
        rows: recipes, or tensors that were made already.
        lead: the dimensions that number them; none: there is one row.
        viewed: whether something else looks into this memory, so that it must not change unnoticed.
    """

    __slots__ = ("__dict__", "lead", "rows", "viewed")

    def __init__(self, rows: list[Any], lead: tuple[int, ...] = ()):
        self.rows, self.lead, self.viewed = rows, lead, False

    @property
    def made(self) -> Any:
        """Its value, once somebody has looked; None before."""
        return self.__dict__.get("made")

    def make(self) -> Any:
        if self.made is None:
            made = [row.make() if isinstance(row, Recipe) else row for row in self.rows]
            if self.lead:
                plain = torch.stack([row.as_subclass(torch.Tensor) for row in made])
                self.fill(plain.reshape(*self.lead, *plain.shape[1:]))
            else:
                self.fill(made[0])
        return self.made

    def fill(self, value: Any) -> None:
        # of two threads that look at once, both get what the first has made
        self.__dict__.setdefault("made", value)


def check(made: Any, shape: Any, kind: Any) -> None:
    """Whether what was made looks as it was said to.

    Args:
        made: a picture, a tensor or an array.
        shape: its announced shape; of a picture width and height.
        kind: its announced dtype; of a picture its mode.

    Raises:
        RuntimeError: else a row of the table does not know its library.
    """
    found = (made.size, made.mode) if hasattr(made, "getbands") else (made.shape, made.dtype)
    if tuple(found[0]) != tuple(shape) or found[1] != kind:
        PROCESS.failed = RuntimeError(f"lazy: {found} was made where {shape, kind} was announced")
        raise PROCESS.failed


class Waiting:
    """What a lazy tensor and a lazy array have in common: they look into a cell."""

    cell: Cell
    path: tuple[View, ...] = ()
    shape: Any
    dtype: Any
    _value: Any = None

    @property
    def waits(self) -> bool:
        return self.cell.made is None

    @property
    def rows(self) -> list[Any]:
        rows = self.cell.rows
        for view in self.path:
            rows = [
                row.then(view.each[0], *view.each[1:]) if view.each else row
                for row in rows[view.rows]
            ]
        return rows

    def value(self) -> Any:
        """The true one. It shares memory as it would have."""
        if self._value is None:
            if self.waits:
                blame()
            value = self.cell.make()
            for view in self.path:
                name, *args = view.step
                value = COOKS[name](value, *args)
            check(value, self.shape, self.dtype)
            self._value = value
        return self._value


def stands_for(kind: type, base: type = type) -> type:
    """A metaclass: `type(lazy) == kind`, also as a key of a dictionary.

    `type(lazy) is kind` can not be helped.
    """

    def equal(cls: Any, other: object) -> bool:
        return other is cls or other is cls.stands_for

    def digest(cls: Any) -> int:
        return hash(cls.stands_for)

    made = type(base)(f"Standing{kind.__name__}", (base,), {"__eq__": equal, "__hash__": digest})
    made.stands_for = kind
    return made
