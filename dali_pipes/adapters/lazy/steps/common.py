"""What PyTorch and NumPy have in common: rows of views, numbers and changes in place.

PyTorch's operators (torch_ops.py) and NumPy's functions (numpy_ops.py) are noted as these. Some
dimensions of what waits number pictures, its `lead`; what is noted is done to each picture.
"""

import math
import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from dali_pipes.adapters.lazy.cells import CellView, Ints, copied, moved
from dali_pipes.adapters.lazy.steps.step import STEPS, NoPlace, Step, add

MOST_NUMBERS = 16  # of a tensor or an array in arithmetic, such as a color
WHOLE = (None, None, None)  # a slice: its start, stop and step


class Each(NamedTuple):
    """New memory, or a change in place.

    Attributes:
        step: on each picture; None: they are copied.
        like: the dtype of the result, if shape and order of strides stay; of an array a stand-in.
            None: PyTorch says what it looks like.
        otherwise: the step on a single picture whose strides change, if `step` is None.
        in_place: whether it changes the memory that there is.
    """

    step: tuple[Any, ...] | None
    like: Any = None
    otherwise: tuple[Any, ...] = ()
    in_place: bool = False


class Join(NamedTuple):
    """New memory, of the pictures of many tensors or arrays in their order.

    Attributes:
        shape: of the result.
        lead: the dimensions of it that number pictures.
        step: on the one picture that all parts are; None: they are others.
    """

    shape: Ints
    lead: Ints = ()
    step: tuple[Any, ...] | None = None


# Views


def place_in_picture(value: Any, dim: int) -> int:
    """The number of a dimension among those of one picture."""
    return dim - sum(lead < dim for lead in value.lead)


def permute(value: Any, dims: Sequence[int]) -> CellView:
    """The dimensions in another order."""
    dims = tuple([dim % len(value.shape) for dim in dims])
    inside = tuple(place_in_picture(value, dim) for dim in dims if dim not in value.lead)
    return CellView(
        ("permute", dims),
        tuple(dims.index(dim) for dim in value.lead),
        each=None if inside == tuple(range(len(inside))) else ("permute", inside),
    )


def index(value: Any, parts: Sequence[Any]) -> CellView | None:
    """A part of it.

    Args:
        parts: for each dimension a number or a slice, as of `WHOLE`; and None for each new one.
            That is the channel of gray pictures of two dimensions; else it numbers pictures.
    """
    return _index(tuple(value.shape), value.lead, tuple(parts))


@lru_cache(maxsize=4096)
def _index(shape: Ints, lead: Ints, parts: tuple[Any, ...]) -> CellView | None:
    known = [part for part in parts if part is not None]
    taken: list[Sequence[int]] = [
        range(size)[slice(*part)] if isinstance(part, tuple) else [range(size)[part]]
        for size, part in zip(shape, known, strict=True)
    ]
    sides = sum(isinstance(part, tuple) and dim not in lead for dim, part in enumerate(known))
    if sides < 2 or not all(taken):
        return None

    rows = None
    if lead:
        counts = [shape[dim] for dim in lead]
        numbers = np.arange(math.prod(counts)).reshape(counts)
        for axis, dim in enumerate(lead):
            numbers = numbers.take(taken[dim], axis)
        rows = tuple(numbers.ravel().tolist())

    picture: list[Any] = []
    moved_to, new = {}, []  # where those that number pictures are in the result
    dim = at = 0
    for part in parts:
        if part is None and sides > 2:
            new.append(at)
        elif part is None:
            picture.append(None)
            sides += 1
        elif dim not in lead:
            picture.append(WHOLE if taken[dim] == range(shape[dim]) else part)
        elif isinstance(part, tuple):
            moved_to[dim] = at
        at += part is None or isinstance(part, tuple)
        dim += part is not None

    is_same = picture == [WHOLE] * len(picture)
    return CellView(
        ("index", parts),
        (*[moved_to[dim] for dim in lead if dim in moved_to], *new),
        rows,
        None if is_same else ("index", tuple(picture)),
    )


def make_index(value: Any, parts: Any) -> Any:
    return value[tuple([slice(*part) if isinstance(part, tuple) else part for part in parts])]


def plan_index(row: Any, parts: Any) -> None:
    known = [part for part in parts if part is not None]
    for dim, size in reversed(list(enumerate(sizes_of(row)))):
        part = known[dim]
        if not isinstance(part, tuple):
            row.squeeze(dim)
        elif part == (None, None, -1):
            row.reverse(dim)
        elif (first_and_last := part_of(part, size)) != (0, size):
            row.slice(dim, *first_and_last)
    left = [part for part in parts if part is None or isinstance(part, tuple)]
    for dim, part in enumerate(left):
        if part is None:
            row.unsqueeze(dim)


def part_of(part: Any, size: int) -> tuple[int, int]:
    """The first of a slice, and the one after the last."""
    if not isinstance(part, tuple) or part[2] not in (None, 1):
        raise NoPlace("each second pixel, or one in more")
    return slice(*part).indices(size)[:2]


def sizes_of(row: Any) -> tuple[int, ...]:
    """Its shape."""
    sizes = {"C": row.channels, "H": row.size[0], "W": row.size[1]}
    return tuple(sizes[axis] for axis in row.axes)


def plan_nothing(row: Any, *_: Any) -> None:
    """It changes no pixel."""


add(
    Step("permute", moved, plan=lambda row, dims: row.permute(*dims)),
    Step("index", make_index, plan=plan_index),
)


# Joined memory


def stack(lead: Ints, shapes: list[Ints], same: bool, dim: int = 0) -> Join | None:
    """
    Args:
        lead: the dimensions that number pictures in each part.
        shapes: of the parts.
        same: whether all parts are the same tensor.
    """
    if any(shape != shapes[0] for shape in shapes):
        return None
    dim %= len(shapes[0]) + 1
    shape = (*shapes[0][:dim], len(shapes), *shapes[0][dim:])
    if same and not lead and len(shapes[0]) == 2:
        return Join(shape, step=("repeated", len(shapes), dim, True))
    return Join(shape, (dim, *(each + (each >= dim) for each in lead)))


def concatenate(lead: Ints, shapes: list[Ints], same: bool, dim: int = 0) -> Join | None:
    """The same along a dimension that there is, by which pictures are numbered first."""
    dim %= len(shapes[0])
    rest = [(*shape[:dim], *shape[dim + 1 :]) for shape in shapes]
    if any(each != rest[0] for each in rest):
        return None
    total = sum(shape[dim] for shape in shapes)
    shape = (*shapes[0][:dim], total, *shapes[0][dim + 1 :])
    if same and not lead and shapes[0][dim] == 1:
        return Join(shape, step=("repeated", len(shapes), dim))
    return Join(shape, lead) if lead[:1] == (dim,) else None


def make_repeated(gray: Any, count: int, dim: int, is_new: bool = False) -> Any:
    """One channel many times."""
    if isinstance(gray, np.ndarray):
        return (np.stack if is_new else np.concatenate)([gray] * count, dim)
    return (torch.stack if is_new else torch.cat)([gray] * count, dim)


def plan_repeated(row: Any, count: int, dim: int, is_new: bool = False) -> None:
    if is_new:
        row.unsqueeze(dim)
    if (row.axes[dim], row.channels, count) != ("C", 1, 3):
        raise NoPlace("one dimension many times")
    row.convert("RGB")


add(Step("repeated", make_repeated, plan=plan_repeated))


# Arithmetic with numbers, or with a few of them, such as one for each channel


def for_each_picture(value: Any, numbers: Any) -> Any:
    """An array or a tensor of numbers, as each picture is computed with it; None: it cannot be."""
    ndim = len(value.shape)
    shape = (1,) * (ndim - numbers.ndim) + tuple(numbers.shape)
    fits = len(shape) == ndim and all(
        own == 1 or (own == size and dim not in value.lead)
        for dim, (own, size) in enumerate(zip(shape, value.shape, strict=True))
    )
    if not fits or math.prod(shape) > MOST_NUMBERS:
        return None
    return numbers.reshape([size for dim, size in enumerate(shape) if dim not in value.lead])


def per_channel(row: Any, value: Any) -> Any:
    """A number, or one for each channel."""
    numbers = np.asarray(value, np.float64)
    if numbers.size == 1:
        return float(numbers.reshape(()))
    shape = (1,) * (len(row.axes) - numbers.ndim) + numbers.shape
    if [axis for axis, size in zip(row.axes, shape, strict=True) if size > 1] != ["C"]:
        raise NoPlace("arithmetic with other numbers than one for each channel")
    return numbers.ravel()


def dtype_after(row: Any, compute: Callable[[Any, Any], Any], other: Any) -> torch.dtype:
    """PyTorch's dtype of a result, which is another one of arrays than of tensors."""
    one = torch.ones((1,) * len(row.axes), dtype=row.dtype, device="cpu")
    if row.form == "array":
        one = one.numpy()  # type: ignore[assignment]
    return torch.as_tensor(compute(one, other), dtype=None, device="cpu").dtype


# what a value becomes: (factor, summand)
_BY_AND_PLUS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "mul": lambda other: (other, 0.0),
    "div": lambda other: (1 / other, 0.0),
    "add": lambda other: (1.0, other),
    "sub": lambda other: (1.0, -other),
    "mul of": lambda other: (other, 0.0),
    "add of": lambda other: (1.0, other),
    "sub of": lambda other: (-1.0, other),
}


def _add_numbers(name: str, compute: Callable[..., Any], dtype: Any = dtype_after) -> None:
    """A row of arithmetic; `dtype` says which one the result has."""

    def plan(row: Any, other: Any) -> None:
        after, numbers = dtype(row, compute, other), per_channel(row, other)
        if not after.is_floating_point:
            raise NoPlace("arithmetic of whole numbers")
        if name.startswith("div") and not np.all(numbers):
            raise NoPlace("a division by zero")
        row.cast(after)
        by, plus = _BY_AND_PLUS[name.removesuffix(" in place")](numbers)
        row.scale_by(*(e.tolist() if isinstance(e, np.ndarray) else e for e in (by, plus)))

    add(Step(name, compute, plan=plan))


def _turned(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, other: compute(other, value)


for _name, _compute, _in_place in [
    ("add", operator.add, operator.iadd),
    ("sub", operator.sub, operator.isub),
    ("mul", operator.mul, operator.imul),
    ("div", operator.truediv, operator.itruediv),
]:
    _add_numbers(_name, _compute)
    _add_numbers(f"{_name} in place", _in_place, lambda row, *_: row.dtype)
    if _name != "div":
        _add_numbers(f"{_name} of", _turned(_compute))


# Changes in place of a part


def make_set(value: Any, new: Any) -> Any:
    if isinstance(value, torch.Tensor) and not isinstance(new, torch.Tensor):
        return value.fill_(new)
    value[...] = new
    return value


def make_through(value: Any, path: Any, name: str, *args: Any, **options: Any) -> Any:
    """A change of what is seen by some views of it."""
    seen = value
    for view in path:
        seen = STEPS[view[0]].make(seen, *view[1:])
    made = STEPS[name].make(seen, *args, **options)
    if made is not seen:
        seen[...] = made
    return value


def plan_through(row: Any, path: Any, name: str, *args: Any) -> None:
    """A part that gets a value."""
    if name != "set" or any(view[0] != "index" or None in view[1] for view in path):
        raise NoPlace(f"{name} in place, of a part")
    box = [(0, size) for size in sizes_of(row)]
    for _, parts in path:
        inside = [
            part_of(part, last - first) for part, (first, last) in zip(parts, box, strict=True)
        ]
        box = [
            (first + one, first + other)
            for (first, _), (one, other) in zip(box, inside, strict=True)
        ]
    parts = {"C": (0, row.channels), **dict(zip(row.axes, box, strict=True))}
    if parts["C"] != (0, row.channels):
        raise NoPlace("a part of the channels")

    value: Any
    given = np.asarray(args[0])
    if not given.ndim:
        value = float(given)
    elif row.axes == "HWC" and given.ndim == 1:
        value = torch.from_numpy(given.reshape(-1, 1, 1))
    elif row.axes == "CHW":
        value = torch.from_numpy(given)
    else:
        raise NoPlace("a part of an array that is set to others")
    (top, bottom), (left, right) = parts["H"], parts["W"]
    row.erase(top, left, bottom - top, right - left, value)


add(
    Step("set", make_set),
    Step("through", make_through, plan=plan_through),
    Step("own", copied, plan=plan_nothing),
)
