"""NumPy: what is noted of arrays, and what arrays become elsewhere.

Views and arithmetic are the rows that tensors have, too (common.py). Shape and strides of a result
NumPy says itself, of a stand-in whose values nobody reads.
"""

from typing import Any

import numpy as np
import PIL.Image
import torch

from dali_pipes.adapters.lazy.cells import Ints, dense
from dali_pipes.adapters.lazy.steps.common import for_each_picture, plan_nothing
from dali_pipes.adapters.lazy.steps.step import Step, add

# what they are noted as
UFUNCS: dict[np.ufunc, str] = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.divide: "div",
}


def parts_of(at: Any, ndim: int) -> list[Any] | None:
    """An index as `common.index` takes it; None: it is of another kind than numbers and slices."""
    parts = list(at) if isinstance(at, tuple) else [at]
    known = sum(_is_slice(each) or _is_number(each) for each in parts)
    rest = [each for each in parts if each is Ellipsis]
    new = sum(each is None for each in parts)
    if known + len(rest) + new != len(parts) or len(rest) > 1 or known > ndim:
        return None
    place = parts.index(Ellipsis) if rest else len(parts)
    parts[place : place + 1] = [slice(None)] * (ndim - known)
    return [
        (each.start, each.stop, each.step) if isinstance(each, slice) else each for each in parts
    ]


def _is_slice(value: Any) -> bool:
    """Whether it is one of whole numbers; NumPy complains of others."""
    return isinstance(value, slice) and all(
        each is None or _is_number(each) for each in (value.start, value.stop, value.step)
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


# Arithmetic


def operand(ufunc: np.ufunc, array: Any, value: Any, turned: bool) -> Any:
    """What an array is computed with; None: it is not noted.

    NumPy warns or raises where something overflows or is divided by zero. So this must not happen
    later: there are no such numbers.
    """
    divides = ufunc is np.divide
    if (turned and divides) or array.dtype == np.float16:
        return None
    if isinstance(value, (bool, int, float, np.bool_, np.number)):
        return value if _is_harmless(value, divides) else None
    if isinstance(value, (list, tuple)) and all(type(each) in (int, float) for each in value):
        value = np.asarray(value)
    if type(value) is not np.ndarray or value.dtype.kind not in "biuf":
        return None
    numbers = for_each_picture(array, value)
    if numbers is None or not all(_is_harmless(each, divides) for each in numbers.flat):
        return None
    # one dimension less than an array of no dimension would be a number
    return numbers if array.lead else value


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


# New memory


def torch_dtype(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _plan_array(row: Any) -> None:
    row.become("array", "HWC")


def _plan_tensor(row: Any, dtype: torch.dtype) -> None:
    row.become("tensor")
    row.cast(dtype)


add(
    Step("np.copy", lambda array, order: array.copy(order), plan=plan_nothing),
    Step(
        "np.astype",
        lambda array, dtype: array.astype(dtype),
        plan=lambda row, dtype: row.cast(torch_dtype(dtype)),
    ),
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
