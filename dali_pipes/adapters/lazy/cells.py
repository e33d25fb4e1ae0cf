"""Memory that waits. Whatever shares memory in the program shares a cell.

    cell: some recipes, and how their pictures lie in its memory
      └ view, view, …: the steps by which a tensor or an array looks into it

A batch, a clip or a batch of clips is one cell: some of its dimensions, its `lead`, number
pictures, and the others are those of one picture.
"""

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
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
    """What a tensor or an array looks like, and where pictures are in it.

    Attributes:
        strides: in elements, as PyTorch gives them.
        dtype: PyTorch's, or NumPy's.
        lead: the dimensions that number pictures, in the order in which they do. Those that are
            left are one picture's.
    """

    shape: Ints
    strides: Ints
    dtype: Any
    lead: Ints = ()

    @property
    def sides(self) -> Ints:
        """The shape of one picture."""
        return outside(self.lead, self.shape) if self.lead else self.shape

    @property
    def is_in_front(self) -> bool:
        """Whether the first dimensions number pictures, in their order."""
        return self.lead == tuple(range(len(self.lead)))


class CellView(NamedTuple):
    """How something looks into a cell.

    Attributes:
        step: on all of it: the name of a row of the table, and arguments; empty: none.
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
        rows: the recipe of each picture; a tensor or an array of one that was made already.
        is_copy: whether they were copied from other memory, and may look into that when they are
            made, or must not be written to.
        arrived: how many things look into it in another process, to which it was sent.
    """

    __slots__ = ("__dict__", "arrived", "form", "is_copy", "lock", "rows")

    def __init__(self, rows: list[Any], form: Form, is_copy: bool = False):
        self.rows, self.form, self.is_copy, self.arrived = rows, form, is_copy, 0
        self.lock = threading.RLock()  # of the threads of a program

    def __reduce__(self) -> Any:
        """As it is; what of it was made goes as one tensor or array."""
        made = [row for row in self.rows if not isinstance(row, Recipe)]
        recipes = [row if isinstance(row, Recipe) else None for row in self.rows]
        return _rebuild, (recipes, _stack(made) if made else None, self.form, self.is_copy)

    @property
    def made(self) -> Any:
        """Its value, once somebody has looked; None before."""
        return self.__dict__.get("made")

    def make(self) -> Any:
        """Its value, a tensor or an array."""
        with self.lock:
            if self.made is None:
                self.fill(self._make())
        return self.made

    def take(self) -> Any:
        """Its value, for somebody whose object is no other's: all others get a view."""
        with self.lock:
            value, is_taken = self.make(), self.__dict__.get("is_taken", False)
            self.__dict__["is_taken"] = True
        if not is_taken:
            return value
        return value.detach() if isinstance(value, torch.Tensor) else value.view()

    def _make(self) -> Any:
        rows = [row.make() if isinstance(row, Recipe) else row for row in self.rows]
        if self.form.lead:
            return self.join(rows)
        value = _lie(rows[0], self.form.strides)
        return copied(value) if self.is_copy and not _is_alone(value) else value

    def fill(self, value: Any) -> None:
        # of two threads that look at once, both get what the first has made
        self.__dict__.setdefault("made", value)

    def join(self, pictures: Any) -> Any:
        """All of it, of its pictures: a list of them, or one tensor or array (pictures, *sides)."""
        if isinstance(pictures, list):
            pictures = _stack(pictures)
        shape, strides, _, lead = self.form
        dims = (*lead, *outside(lead, range(len(shape))))
        whole = pictures.reshape([shape[dim] for dim in dims])
        if not self.form.is_in_front:
            whole = moved(whole, [dims.index(dim) for dim in range(len(dims))])
        return _lie(whole, strides)


def _stack(pictures: list[Any]) -> Any:
    is_array = isinstance(pictures[0], np.ndarray)
    return np.stack(pictures) if is_array else torch.stack(pictures)


def _rebuild(recipes: list[Recipe | None], made: Any, form: Form, is_copy: bool) -> Cell:
    rest = iter(() if made is None else made)
    return Cell([next(rest) if row is None else row for row in recipes], form, is_copy)


def moved(value: Any, order: Any) -> Any:
    """Its dimensions in another order."""
    return value.permute(order) if isinstance(value, torch.Tensor) else value.transpose(order)


def _lie(value: Any, strides: Ints) -> Any:
    """The same values with these strides, in elements."""
    if is_laid_out(value, strides):
        return value
    if isinstance(value, torch.Tensor):
        made = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
        return made.copy_(value)
    # new memory of NumPy's has no gaps: dimensions of contiguous memory in another order
    order = sorted(range(value.ndim), key=lambda dim: -strides[dim])
    in_order = np.ascontiguousarray(value.transpose(order))
    return in_order.transpose([order.index(dim) for dim in range(value.ndim)])


def is_laid_out(value: Any, strides: Ints) -> bool:
    """Whether a tensor or an array has these strides, in elements, where they mean something."""
    own = value.stride() if isinstance(value, torch.Tensor) else strides_of(value)
    return own == strides or all(
        one == other or size < 2 for one, other, size in zip(own, strides, value.shape, strict=True)
    )


def _is_alone(value: Any) -> bool:
    """Whether it is all that there is in its memory."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().nbytes() == value.numel() * value.element_size()
    return value.base is None


def strides_of(array: np.ndarray) -> Ints:
    """In elements."""
    return tuple([stride // (array.itemsize or 1) for stride in array.strides])


def outside(lead: Ints, values: Sequence[int]) -> Ints:
    """Those of the dimensions that do not number pictures, of values for all dimensions."""
    return tuple([value for dim, value in enumerate(values) if dim not in lead])


@lru_cache(maxsize=4096)
def dense(shape: Ints, like: Ints) -> Ints:
    """Strides of memory without gaps, whose dimensions are in the order of other strides."""
    order = sorted(range(len(shape)), key=lambda dim: -like[dim])
    strides = [1] * len(shape)
    for at, dim in enumerate(order):
        strides[dim] = prod([max(shape[later], 1) for later in order[at + 1 :]])
    return tuple(strides)


def contiguous(shape: Ints) -> Ints:
    """The strides of contiguous memory."""
    return dense(shape, tuple(range(len(shape)))[::-1])


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
    is_same = tuple(found[0]) == tuple(shape) and found[1] == kind
    if is_same and (strides is None or is_laid_out(made, strides)):
        return
    announced = (tuple(shape), kind) if strides is None else (tuple(shape), kind, strides)
    PROCESS.failed = RuntimeError(f"lazy: {found} was made where {announced} was announced")
    raise PROCESS.failed


class Waiting:
    """What a lazy tensor and a lazy array have in common: they look into a cell.

    Attributes:
        form: what it looks like.
        path: the views by which it looks.
    """

    cell: Cell
    form: Form
    path: tuple[CellView, ...]
    _value: Any = None

    @property
    def waits(self) -> bool:
        return self.cell.made is None

    @property
    def lead(self) -> Ints:
        return self.form.lead

    @property
    def sides(self) -> Ints:
        """The shape of one picture."""
        return self.form.sides

    @property
    def rows(self) -> list[Any]:
        """Its pictures: recipes, and what was made already."""
        rows = self.cell.rows
        for view in self.path:
            if view.rows is not None:
                rows = [rows[at] for at in view.rows]
            if view.each is not None:
                rows = _after(rows, view.each[0], *view.each[1:])
        return rows

    def copied_rows(self) -> list[Any]:
        """The same, which whoever gets them may change."""
        return [row if isinstance(row, Recipe) else copied(row) for row in self.rows]

    def rows_after(self, name: str, *args: Any, **options: Any) -> list[Any]:
        """Its pictures after one step more."""
        return _after(self.copied_rows(), name, *args, **options)

    def sees_as(self, other: "Waiting") -> bool:
        """Whether both see the same memory in the same way."""
        return self.cell is other.cell and self.path == other.path

    def leave(self) -> None:
        """Looks from now on into a cell of its own, of which there is only what it sees."""
        self.cell, self.path = Cell(self.rows, self.form), ()

    def change(self, name: str, /, *args: Any, **options: Any) -> bool:
        """Notes a step that changes its memory in place; False: it does not wait.

        Whatever else looks into the cell sees the change, as in the program, since its own views
        are done after it.
        """
        with self.cell.lock:
            return self._change(name, *args, **options) if self.waits else False

    def _change(self, name: str, /, *args: Any, **options: Any) -> bool:
        numbers: Sequence[int] = range(len(self.cell.rows))
        seen = []
        for view in self.path:
            if view.rows is not None:
                numbers = [numbers[at] for at in view.rows]
            if view.each is not None:
                seen.append(view.each)
        step = ("through", tuple(seen), name, *args) if seen else (name, *args)

        rows = list(self.cell.rows)
        if self.cell.is_copy:
            rows, self.cell.is_copy = _after(rows, "own"), False
        for at in numbers:
            (rows[at],) = _after([rows[at]], *step, **options)
        self.cell.rows = rows
        return True

    def value(self) -> Any:
        """The true one. It shares memory as it would have."""
        if self._value is None:
            with looking() if self.waits else nullcontext():
                value = self.cell.take()
                for view in self.path:
                    value = STEPS[view.step[0]].make(value, *view.step[1:])
            check(value, self.form.shape, self.form.dtype, self.form.strides)
            self._value = value
        return self._value


def rows_of(value: Any, lazy: Waiting | None, lead: Ints) -> list[Any]:
    """The pictures of any tensor or array, which whoever gets them may change."""
    if lazy is not None and lazy.waits:
        return lazy.copied_rows()
    true = value if lazy is None else lazy.value()
    if isinstance(true, torch.Tensor):
        true = true.detach().as_subclass(torch.Tensor)
    in_order = copied(moved(true, (*lead, *outside(lead, range(true.ndim)))))
    return list(in_order.reshape(-1, *outside(lead, true.shape)))


def copied(made: Any) -> Any:
    """A copy, which may be changed."""
    return made.clone() if isinstance(made, torch.Tensor) else made.copy("K")


def _after(rows: list[Any], name: str, *args: Any, **options: Any) -> list[Any]:
    return [
        row.then(name, *args, **options)
        if isinstance(row, Recipe)
        else STEPS[name].make(row, *args, **options)
        for row in rows
    ]
