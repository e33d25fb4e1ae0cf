"""NumPy's functions of arrays: `FUNCTIONS`, methods by their names, and `UFUNCS`.

The `form` of a row says what a function does to each picture of an array, and which dimensions of
the result number pictures; shape and strides NumPy says itself, of a stand-in whose values nobody
reads.
"""

import math
from typing import Any

import numpy as np
import PIL.Image
import torch

from dali_pipes.adapters.lazy.cells import CellView, Ints, dense
from dali_pipes.adapters.lazy.steps.step import NoPlace, Step, add
from dali_pipes.adapters.lazy.steps.torch_ops import (
    MOST_NUMBERS,
    Each,
    per_channel,
    plan_arithmetic,
    plan_erase,
    plan_nothing,
    plan_repeated,
    plan_shape,
    sizes_of,
)

FUNCTIONS: dict[Any, Step] = {}
UFUNCS: dict[np.ufunc, str] = {}


def _function(name: str, form: Any, make: Any = None, plan: Any = None) -> None:
    """Adds a row of `np.NAME` and of the method of that name."""
    step = Step(f"np.{name}", make or getattr(np, name), form, plan)
    add(step)
    FUNCTIONS.update(dict.fromkeys([getattr(np, name, name), name], step))


# Views


def _view(name: str) -> Any:
    """A view of which NumPy says on a stand-in where its dimensions come from."""

    def form(array: Any, *args: Any) -> CellView | None:
        step = (f"np.{name}", *args)
        if not array.lead:
            return CellView(step, each=step)
        order = _order(FUNCTIONS[name].make, array.shape, args)
        if order is None:
            return None
        inside = [dim for dim in order if dim not in array.lead]
        order_inside = tuple(sorted(inside).index(dim) for dim in inside)
        lead = tuple(order.index(dim) for dim in array.lead)
        moved = order_inside != tuple(range(len(inside)))
        return CellView(step, lead, each=("np.transpose", order_inside) if moved else None)

    return form


def _order(function: Any, shape: Ints, args: Any) -> list[int] | None:
    """The order of the dimensions after a function that only moves them; None: it does more."""
    # strides tell them apart; nobody reads the memory
    strides = tuple(3**dim for dim in range(1, len(shape) + 1))
    probe = np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), shape, strides)
    found = function(probe, *args).strides
    return [strides.index(each) for each in found] if sorted(found) == sorted(strides) else None


def _index(array: Any, at: Any) -> CellView | None:
    """By numbers, slices, `...` and None."""
    parts = at if isinstance(at, tuple) else (at,)
    if not all(
        each is None or each is Ellipsis or isinstance(each, slice) or _is_number(each)
        for each in parts
    ):
        return None
    if not array.lead:
        whole = _parts_of(at, array.ndim)
        is_new = whole.count(None) == 1 and array.ndim == 3 and not any(map(_is_number, whole))
        lead = (whole.index(None),) if is_new else ()
        picture = tuple(each for each in whole if each is not None) if is_new else at
        return CellView(("np.index", at), lead, each=("np.index", picture))
    if None in parts:
        return None

    # dimensions that number pictures choose among them
    counts = [array.shape[dim] for dim in array.lead]
    numbers = np.arange(math.prod(counts)).reshape(counts)
    each, kept = [], []
    for dim, part in enumerate(_parts_of(at, array.ndim)):
        if dim in array.lead:
            chosen = [part] if _is_number(part) else range(*part.indices(array.shape[dim]))
            numbers = numbers.take(chosen, array.lead.index(dim))
        else:
            each.append(part)
        if not _is_number(part):
            kept.append(dim)
    if not numbers.size:
        return None
    return CellView(
        ("np.index", at),
        tuple(kept.index(dim) for dim in array.lead if dim in kept),
        tuple(numbers.ravel().tolist()),
        None if all(part == slice(None) for part in each) else ("np.index", tuple(each)),
    )


def _parts_of(at: Any, ndim: int) -> list[Any]:
    """An index for each dimension, and None for each new one."""
    parts = list(at) if isinstance(at, tuple) else [at]
    known = sum(each is not None and each is not Ellipsis for each in parts)
    missing = [slice(None)] * (ndim - known)
    place = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
    return parts[:place] + missing + parts[place + 1 :]


def make_transpose(array: np.ndarray, *axes: Any) -> np.ndarray:
    return array.transpose(*axes)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _expand_dims(array: Any, axis: Any) -> CellView | None:
    """A dimension of a gray picture if it has two, else one that numbers pictures."""
    step = ("np.expand_dims", axis)
    if not array.lead and array.ndim == 3 and _is_number(axis):
        return CellView(step, (axis % 4,))
    return None if array.lead else CellView(step, each=step)


def _reshape(array: Any, *shape: Any, order: str = "C", copy: Any = None) -> CellView | None:
    shape = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
    if array.lead or order != "C" or copy is not None or not all(map(_is_number, shape)):
        return None
    return CellView(("np.reshape", shape), each=("np.reshape", shape))


def plan_index(row: Any, at: Any) -> None:
    sizes = sizes_of(row)
    parts = _parts_of(at, len(row.axes))
    old = [part for part in parts if part is not None]
    for dim, part in reversed(list(enumerate(old))):
        if _is_number(part):
            row.squeeze(dim)
        elif part == slice(None, None, -1):
            row.reverse(dim)
        elif part.step in (None, 1):
            first, last, _ = part.indices(sizes[dim])
            row.slice(dim, first, last)
        else:
            raise NoPlace("each second pixel, or one in more")
    for dim, part in enumerate(part for part in parts if not _is_number(part)):
        if part is None:
            row.unsqueeze(dim)


def _plan_order(make: Any) -> Any:
    def plan(row: Any, *args: Any) -> None:
        row.permute(*_order(make, (2,) * len(row.axes), args))  # type: ignore[misc]

    return plan


def _in_row(row: Any, dims: Any) -> list[int]:
    dims = (dims,) if _is_number(dims) else dims
    return [dim % len(row.axes) for dim in dims]


def plan_flip(row: Any, axis: Any = None) -> None:
    for dim in _in_row(row, range(len(row.axes)) if axis is None else axis):
        row.reverse(dim)


def plan_rot90(row: Any, k: int = 1, axes: Any = (0, 1)) -> None:
    found = "".join(row.axes[dim] for dim in axes)
    if found not in ("HW", "WH"):
        raise NoPlace("a rotation of channels")
    method = {1: 2, 2: 3, 3: 4}.get((k if found == "HW" else -k) % 4)
    if method is not None:
        row.transpose(method)


def plan_expand_dims(row: Any, axis: Any) -> None:
    row.unsqueeze((axis[0] if isinstance(axis, tuple) else axis) % (len(row.axes) + 1))


def plan_squeeze(row: Any, axis: Any = None) -> None:
    if axis is None:
        axis = [dim for dim, name in enumerate(row.axes) if name == "C" and row.channels == 1]
    for dim in sorted(_in_row(row, axis), reverse=True):
        row.squeeze(dim)


def plan_reshape(row: Any, shape: Any) -> None:
    total = math.prod(sizes_of(row))
    known = int(np.prod([each for each in shape if each != -1]))
    plan_shape(row, tuple(total // max(known, 1) if each == -1 else each for each in shape))


_function("index", _index, lambda array, at: array[at], plan_index)
_function("transpose", _view("transpose"), make_transpose, _plan_order(make_transpose))
_function("moveaxis", _view("moveaxis"), None, _plan_order(np.moveaxis))
_function("swapaxes", _view("swapaxes"), None, _plan_order(np.swapaxes))
_function("flip", _view("flip"), None, plan_flip)
_function("fliplr", _view("fliplr"), None, lambda row: row.reverse(1))
_function("flipud", _view("flipud"), None, lambda row: row.reverse(0))
_function("rot90", _view("rot90"), None, plan_rot90)
_function("expand_dims", _expand_dims, None, plan_expand_dims)
_function("squeeze", _view("squeeze"), None, plan_squeeze)
_function("reshape", _reshape, lambda array, shape: array.reshape(shape), plan_reshape)


# New memory


def _copy(array: Any, order: str = "C") -> Each | None:
    if order not in ("C", "K", "A", "F"):
        return None
    return Each(("np.copy", order), np.empty_like(array.stand_in, order=order))  # type: ignore[call-overload]


def _copy_by_function(array: Any, order: str = "K") -> Each | None:
    return _copy(array, order)


def _astype(
    array: Any,
    dtype: Any,
    order: str = "K",
    casting: str = "unsafe",
    subok: bool = True,
    copy: bool = True,
) -> Each | None:
    dtype = np.dtype(dtype)
    if order != "K" or casting != "unsafe" or dtype.kind not in "biuf":
        return None
    return Each(("np.astype", dtype), np.empty_like(array.stand_in, dtype))


def _contiguous(array: Any) -> Each:
    return Each(("np.ascontiguousarray",), np.empty(array.shape, array.dtype))


def _repeat(array: Any, repeats: Any, axis: Any = None) -> Each | None:
    """One channel many times."""
    if array.lead or not _is_number(repeats) or axis is None:
        return None
    shape = list(array.shape)
    shape[axis] *= repeats
    return Each(("np.repeat", repeats, axis), np.empty(shape, array.dtype))


def plan_cast(row: Any, dtype: Any) -> None:
    row.cast(torch_dtype(dtype))


def torch_dtype(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _plan_array(row: Any) -> None:
    row.become("array", "HWC")


def _plan_tensor(row: Any, dtype: torch.dtype) -> None:
    row.become("tensor")
    row.cast(dtype)


def _plan_repeat(row: Any, repeats: int, axis: int) -> None:
    plan_repeated(row, repeats, axis % len(row.axes))


_function("copy", _copy, lambda array, order: array.copy(order), lambda row, order: None)
FUNCTIONS[np.copy] = Step("", form=_copy_by_function, make=np.copy)
_function("astype", _astype, lambda array, dtype: array.astype(dtype), plan_cast)
_function("ascontiguousarray", _contiguous, None, plan_nothing)
_function("repeat", _repeat, None, _plan_repeat)
add(
    Step("np.array", np.array, plan=_plan_array),
    Step("np.asarray", np.asarray, plan=_plan_array),
    Step("torch.from_numpy", torch.from_numpy, plan=lambda row: row.become("tensor")),
    Step(
        "torch.tensor",
        lambda array, dtype: torch.tensor(array, dtype=dtype, device="cpu"),
        plan=_plan_tensor,
    ),
    Step("PIL.fromarray", PIL.Image.fromarray, plan=lambda row: row.become("picture", "HWC")),
)


# Arithmetic with numbers, or with a few of them, such as a color

_COMPARED = (np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal)
_BY_TORCH = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div"}


def operand(ufunc: np.ufunc, array: Any, value: Any, turned: bool) -> Any:
    """What an array is computed with; None: it is not noted.

    NumPy warns or raises where something overflows or is divided by zero. So this must not happen
    later: there are no such numbers.
    """
    divides = ufunc is np.divide
    if (divides and turned) or (array.dtype == np.float16 and ufunc not in _COMPARED):
        return None
    if isinstance(value, (bool, int, float, np.bool_, np.number)):
        return value if _is_harmless(value, divides) else None
    if isinstance(value, (list, tuple)) and all(type(each) in (int, float) for each in value):
        value = np.asarray(value)
    if type(value) is not np.ndarray or value.size > MOST_NUMBERS or value.dtype.kind not in "biuf":
        return None
    if not all(_is_harmless(each, divides) for each in value.flat):
        return None
    shape = (1,) * (array.ndim - value.ndim) + value.shape
    fits = len(shape) == array.ndim and all(
        own == 1 or (own == size and dim not in array.lead)
        for dim, (own, size) in enumerate(zip(shape, array.shape, strict=True))
    )
    if not fits:
        return None
    # of one picture; one dimension less than an array of no dimension would be a number
    kept = [size for dim, size in enumerate(shape) if dim not in array.lead]
    return value if not array.lead else value.reshape(kept)


def _is_harmless(number: Any, divides: bool) -> bool:
    size = abs(float(number))
    return size <= 1e6 and (size >= 1e-6 or (size == 0 and not divides))


def result_of(ufunc: np.ufunc, array: Any, value: Any, turned: bool) -> np.ndarray | None:
    """An array like the result. NumPy says on small ones what it is, and complains of numbers of
    which it would; None: it cannot compute that.
    """
    one = small(array.stand_in)
    if isinstance(value, np.ndarray):
        value = np.ones([min(size, 2) for size in value.shape], value.dtype)
    try:
        made = ufunc(value, one) if turned else ufunc(one, value)
    except TypeError:
        return None
    return new_stand_in(array.shape, dense(array.shape, made.strides), made.dtype)


def small(array: np.ndarray) -> np.ndarray:
    """Ones in the same order of strides, of which NumPy says what it makes of the array."""
    order = sorted(range(array.ndim), key=lambda dim: -abs(array.strides[dim]))
    ones = np.ones([min(array.shape[dim], 2) for dim in order], array.dtype)
    return ones.transpose([order.index(dim) for dim in range(array.ndim)])


def new_stand_in(shape: Ints, strides: Ints, dtype: Any) -> np.ndarray:
    """An array with these strides, in elements, of memory without gaps."""
    order = sorted(range(len(shape)), key=lambda dim: -strides[dim])
    made = np.empty([shape[dim] for dim in order], dtype)
    return made.transpose([order.index(dim) for dim in range(len(shape))])


def _ufunc(ufunc: np.ufunc) -> None:
    name = f"np.{ufunc.__name__}"
    UFUNCS[ufunc] = name
    own = _BY_TORCH.get(ufunc.__name__)

    def plan(row: Any, other: Any) -> None:
        dtype = _result_dtype(ufunc, row.dtype, other)
        plan_arithmetic(row, dtype, own, per_channel(row, other))  # type: ignore[arg-type]

    def plan_turned(row: Any, other: Any) -> None:
        if own in ("add", "mul"):
            plan(row, other)
        elif own == "sub":
            dtype = _result_dtype(ufunc, row.dtype, other)
            plan_arithmetic(row, dtype, "rsub", per_channel(row, other))
        else:
            raise NoPlace("a division by pixels")

    def plan_in_place(row: Any, other: Any) -> None:
        plan_arithmetic(row, row.dtype, own, per_channel(row, other))  # type: ignore[arg-type]

    add(
        Step(name, lambda array, other: ufunc(array, other), plan=plan if own else None),
        Step(
            f"{name} of",
            lambda array, other: ufunc(other, array),
            plan=plan_turned if own else None,
        ),
        Step(
            f"{name} in place",
            lambda array, other: ufunc(array, other, out=array),
            plan=plan_in_place if own else None,
        ),
    )


def _result_dtype(ufunc: np.ufunc, dtype: torch.dtype, other: Any) -> torch.dtype:
    one = torch.empty(1, dtype=dtype, device="cpu").numpy()
    one[...] = 1
    return torch_dtype(ufunc(one, np.ravel(other)[:1] if np.ndim(other) else other).dtype)


for _each in (np.add, np.subtract, np.multiply, np.divide, *_COMPARED):
    _ufunc(_each)


# Changes in place of a part


def _set(array: Any, at: Any, value: Any) -> Each | None:
    if isinstance(value, np.ndarray):
        plain = type(value) is np.ndarray and value.dtype.kind in "biuf"
    else:
        plain = isinstance(value, (bool, int, float, np.number)) or (
            isinstance(value, (list, tuple)) and all(type(each) in (int, float) for each in value)
        )
    parts = at if isinstance(at, tuple) else (at,)
    known = all(each is Ellipsis or isinstance(each, slice) or _is_number(each) for each in parts)
    if not plain or not known or array.lead or not array.stand_in.flags.writeable:
        return None
    np.empty_like(array.stand_in[at])[...] = value  # which complains of what does not fit
    return Each(("np.set", at, value), in_place=True)


def make_set(array: np.ndarray, at: Any, value: Any) -> np.ndarray:
    array[at] = value
    return array


def plan_set(row: Any, at: Any, value: Any) -> None:
    box = {"C": (0, row.channels)}
    parts = zip(row.axes, sizes_of(row), _parts_of(at, len(row.axes)), strict=True)
    for axis, size, part in parts:
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise NoPlace("a part of an array that is set")
        box[axis] = part.indices(size)[:2]
    value = np.asarray(value)
    if value.ndim and row.axes != "CHW":
        if value.ndim > 1 or row.axes != "HWC":
            raise NoPlace("a part of an array that is set to others")
        value = value.reshape(-1, 1, 1)
    plan_erase(row, box, torch.from_numpy(value) if value.ndim else value.item())


_function("set", _set, make_set, plan_set)
