"""Memory that waits. Whatever shares memory in the program shares a cell.

    cell: some recipes, and how the pictures of these lie in its memory
      └ view, view, …: the steps by which a tensor or an array looks into it

A batch, a clip or a batch of clips is one cell: some of its dimensions, its `lead`, number pictures,
the others are those of one picture.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from dali_pipes.adapters.lazy.looks import looking
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.state import PROCESS
from dali_pipes.adapters.lazy.steps.step import STEPS

Ints = tuple[int, ...]


class Form(NamedTuple):
    """How pictures lie in memory.

    Attributes:
        shape: of all of it.
        strides: in elements, as PyTorch gives them.
        lead: the dimensions that number pictures, in the order in which they number them. Those
            that are left are one picture's.
    """

    shape: Ints
    strides: Ints
    lead: Ints = ()


class View(NamedTuple):
    """How something looks into a cell.

    Attributes:
        step: on all of it: the name of a row of the table, and arguments.
        lead: the dimensions of the result that number pictures.
        rows: which pictures are left, by their numbers; None: all.
        each: the step on one picture; None: it stays as it is.
    """

    step: tuple[Any, ...]
    lead: Ints = ()
    rows: Sequence[int] | None = None
    each: tuple[Any, ...] | None = None


class Cell:
    """Memory that waits.

    Attributes:
        rows: the recipe of each picture; tensors or arrays of those that were made already.
        arrived: how many things look into it in another process, to which it was sent.
    """

    __slots__ = ("__dict__", "arrived", "form", "rows")

    def __init__(self, rows: list[Any], form: Form):
        self.rows, self.form, self.arrived = rows, form, 0

    def __reduce__(self) -> Any:
        """As it is; what of it was made goes as one tensor or array."""
        made = [row for row in self.rows if not isinstance(row, Recipe)]
        recipes = [row if isinstance(row, Recipe) else None for row in self.rows]
        return _rebuild, (recipes, _stack(made) if made else None, self.form)

    @property
    def made(self) -> Any:
        """Its value, once somebody has looked; None before."""
        return self.__dict__.get("made")

    def make(self) -> Any:
        """Its value, a tensor or an array."""
        if self.made is None:
            rows = [row.make() if isinstance(row, Recipe) else row for row in self.rows]
            self.fill(self.join(rows) if self.form.lead else _lie(rows[0], self.form.strides))
        return self.made

    def fill(self, value: Any) -> None:
        # of two threads that look at once, both get what the first has made
        self.__dict__.setdefault("made", value)

    def join(self, pictures: Any) -> Any:
        """All of it, of its pictures: a list of them, or one tensor of (pictures, *sides)."""
        if isinstance(pictures, list):
            pictures = _stack(pictures)
        shape, strides, lead = self.form
        dims = (*lead, *sides_of(range(len(shape)), lead))
        whole = pictures.reshape([shape[dim] for dim in dims])
        if lead != tuple(range(len(lead))):
            order = [dims.index(dim) for dim in range(len(dims))]
            whole = (
                whole.permute(order) if isinstance(whole, torch.Tensor) else whole.transpose(order)
            )
        return _lie(whole, strides)


def _stack(pictures: list[Any]) -> Any:
    is_array = isinstance(pictures[0], np.ndarray)
    return np.stack(pictures) if is_array else torch.stack(pictures)


def _rebuild(recipes: list[Recipe | None], made: Any, form: Form) -> Cell:
    rest = iter(() if made is None else made)
    return Cell([next(rest) if row is None else row for row in recipes], form)


def _lie(value: Any, strides: Ints) -> Any:
    """The same values with these strides, in elements."""
    if is_laid_out(value, strides):
        return value
    if isinstance(value, torch.Tensor):
        made = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
        return made.copy_(value)
    # strides of new memory are dense: a contiguous array whose dimensions are in another order
    order = sorted(range(value.ndim), key=lambda dim: -strides[dim])
    inverse = [order.index(dim) for dim in range(value.ndim)]
    return np.ascontiguousarray(value.transpose(order)).transpose(inverse)


def is_laid_out(value: Any, strides: Ints) -> bool:
    """Whether a tensor or an array has these strides, in elements, where they mean something."""
    if isinstance(value, torch.Tensor):
        own: Sequence[int] = value.stride()
    else:
        own = [stride // max(value.itemsize, 1) for stride in value.strides]
    return tuple(own) == tuple(strides) or all(
        one == other or size < 2 for one, other, size in zip(own, strides, value.shape, strict=True)
    )


def sides_of(shape: Sequence[int], lead: Ints) -> Ints:
    """What belongs to a picture of something that belongs to dimensions."""
    if not lead:
        return tuple(shape)
    return tuple([size for dim, size in enumerate(shape) if dim not in lead])


def check(made: Any, shape: Any, kind: Any, strides: Ints | None = None) -> None:
    """Whether what was made looks as it was said to.

    Args:
        made: a picture, a tensor or an array.
        shape: its announced shape; of a picture width and height.
        kind: its announced dtype; of a picture its mode.
        strides: its announced strides, in elements.

    Raises:
        RuntimeError: else a row of the table does not know its library.
    """
    found = (made.size, made.mode) if hasattr(made, "getbands") else (made.shape, made.dtype)
    same = tuple(found[0]) == tuple(shape) and found[1] == kind
    if same and (strides is None or is_laid_out(made, strides)):
        return
    announced = (tuple(shape), kind) if strides is None else (tuple(shape), kind, strides)
    PROCESS.failed = RuntimeError(f"lazy: {found} was made where {announced} was announced")
    raise PROCESS.failed


class Waiting:
    """What a lazy tensor and a lazy array have in common: they look into a cell.

    Attributes:
        lead: the dimensions that number pictures.
        path: the views by which it looks.
    """

    cell: Cell
    lead: Ints
    path: tuple[View, ...]
    _value: Any = None

    @property
    def form(self) -> tuple[Ints, Any, Ints]:
        """Shape, dtype and strides in elements, as they are announced."""
        raise NotImplementedError

    @property
    def waits(self) -> bool:
        return self.cell.made is None

    @property
    def sides(self) -> Ints:
        """The shape of one picture."""
        return sides_of(self.form[0], self.lead)

    @property
    def rows(self) -> list[Any]:
        """Its pictures: recipes, and what was made already."""
        rows = self.cell.rows
        for view in self.path:
            if view.rows is not None:
                rows = [rows[at] for at in view.rows]
            if view.each is not None:
                rows = _then_all(rows, view.each[0], *view.each[1:])
        return rows

    def copied_rows(self) -> list[Any]:
        """The same, which whoever gets them may change."""
        return [
            row
            if isinstance(row, Recipe)
            else row.clone()
            if isinstance(row, torch.Tensor)
            else row.copy()
            for row in self.rows
        ]

    def rows_after(self, name: str, *args: Any, **options: Any) -> list[Any]:
        """Its pictures after one step more."""
        return _then_all(self.copied_rows(), name, *args, **options)

    def leave(self) -> None:
        """Looks from now on into a cell of its own, of which there is only what it sees."""
        shape, _, strides = self.form
        self.cell, self.path = Cell(self.rows, Form(shape, strides, self.lead)), ()

    def change(self, name: str, /, *args: Any, **options: Any) -> bool:
        """Notes a step that changes its memory in place; False: it does not wait.

        Whatever else looks into the cell sees the change, as in the program: views are steps, which
        are done after it.
        """
        if not self.waits:
            return False
        numbers: Sequence[int] = range(len(self.cell.rows))
        path = []
        for view in self.path:
            if view.rows is not None:
                numbers = [numbers[at] for at in view.rows]
            if view.each is not None:
                path.append(view.each)
        step = ("through", tuple(path), name, *args) if path else (name, *args)

        rows = list(self.cell.rows)
        for at in numbers:
            (rows[at],) = _then_all([rows[at]], *step, **options)
        self.cell.rows = rows
        return True

    def value(self) -> Any:
        """The true one. It shares memory as it would have."""
        if self._value is None:
            with looking() if self.waits else nullcontext():
                value = self.cell.make()
                for view in self.path:
                    value = STEPS[view.step[0]].make(value, *view.step[1:])
            shape, dtype, strides = self.form
            check(value, shape, dtype, strides)
            self._value = value
        return self._value


def _then_all(rows: list[Any], name: str, *args: Any, **options: Any) -> list[Any]:
    return [
        row.then(name, *args, **options)
        if isinstance(row, Recipe)
        else STEPS[name].make(row, *args, **options)
        for row in rows
    ]


def dense(shape: Sequence[int], like: Sequence[int]) -> Ints:
    """Strides of memory without gaps, whose dimensions are in the order of other strides."""
    order = sorted(range(len(shape)), key=lambda dim: -like[dim])
    strides = [1] * len(shape)
    for at, dim in enumerate(order):
        strides[dim] = prod([max(shape[later], 1) for later in order[at + 1 :]])
    return tuple(strides)
