"""Arrays of pictures that are made when they are looked at.

A `LazyArray` only says that it is a np.ndarray: a true one has memory, which code of C reads
without asking. It has a stand-in, an array of the same shape, dtype and strides whose values nobody
reads, on which NumPy itself finds out what a view of it looks like. Code of C that wants a true
array gets one from `__array__`, or complains of its type, which the net (program.py) catches.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dis import opname
from functools import lru_cache, partial
from typing import Any

import numpy as np
import PIL.Image
import torch

from dali_pipes.adapters.lazy.cells import (
    Cell,
    CellView,
    Form,
    Ints,
    Waiting,
    check,
    dense,
    rows_of,
    strides_of,
)
from dali_pipes.adapters.lazy.looks import blame
from dali_pipes.adapters.lazy.pictures import PLAIN, new_picture, recipe_of
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.state import PROCESS, STATE, waits
from dali_pipes.adapters.lazy.steps.common import concatenate, index, permute, stack
from dali_pipes.adapters.lazy.steps.numpy_ops import (
    UFUNCS,
    new_stand_in,
    operand,
    parts_of,
    result_of,
    small,
    torch_dtype,
)
from dali_pipes.adapters.lazy.steps.step import STEPS, replace
from dali_pipes.adapters.lazy.tensors import LazyTensor, new_tensors, wrap


class _StandsForArray(type):
    """`type(lazy) == np.ndarray`, also as a key of a table; `type(lazy) is` cannot be helped."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is np.ndarray

    def __hash__(cls) -> int:
        return hash(np.ndarray)


class LazyArray(  # type: ignore[metaclass]  # NumPy's mixin has none in truth
    Waiting, np.lib.mixins.NDArrayOperatorsMixin, metaclass=_StandsForArray
):
    """
    Args:
        stand_in: an array like it.
    """

    __array_priority__ = 1000.0
    lead: Ints = ()
    _base: "LazyArray | None" = None

    def __init__(
        self, cell: Cell, stand_in: np.ndarray, lead: Ints = (), path: tuple[CellView, ...] = ()
    ):
        vars(self).update(cell=cell, stand_in=stand_in, lead=lead, path=path)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            vars(self)[name] = value
        else:  # NumPy's, such as `flat`, or one that an array does not have
            setattr(self.true(), name, value)
            self._keep_form()

    def resize(self, *args: Any, **options: Any) -> None:
        """In place."""
        self.true().resize(*args, **options)
        self._keep_form()

    def _keep_form(self) -> None:
        """
        Raises:
            RuntimeError: its memory has another form by now, which it cannot follow.
        """
        true = self.true()
        check(true, self.shape, self.dtype, self.form.strides)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return np.ndarray

    shape = property(lambda self: self.stand_in.shape)
    dtype = property(lambda self: self.stand_in.dtype)
    ndim = property(lambda self: self.stand_in.ndim)
    size = property(lambda self: self.stand_in.size)
    strides = property(lambda self: self.stand_in.strides)
    nbytes = property(lambda self: self.stand_in.nbytes)
    itemsize = property(lambda self: self.stand_in.itemsize)
    form = property(lambda self: _form(self.stand_in, self.lead))

    @property
    def may_be_noted(self) -> bool:
        """Whether it still waits, where arrays may wait."""
        return self.waits and waits("array")

    @property
    def is_image(self) -> bool:
        """Whether it is one picture, of which a step may be noted."""
        return self.may_be_noted and not self.lead

    def __len__(self) -> int:
        return len(self.stand_in)

    def true(self) -> np.ndarray:
        """What a program without this would have."""
        value = self.value()
        if not self.stand_in.flags.writeable and value.flags.writeable:
            value.flags.writeable = False
        return value

    def then(self, stand_in: np.ndarray, name: str, /, *args: Any, **options: Any) -> "LazyArray":
        """New memory: every picture after one step more.

        Args:
            stand_in: an array like the result.
        """
        return new_arrays(self.rows_after(name, *args, **options), stand_in, self.lead)

    @property
    def base(self) -> Any:
        """The array whose memory it looks into."""
        owns_memory = self.waits and self.stand_in.flags.writeable
        return self._base if self._base is not None or owns_memory else self.true().base

    def _truly(self, name: str, *args: Any, **options: Any) -> Any:
        return _call(getattr(self.true(), name), args, options, (self,))

    # views and copies

    def __getitem__(self, at: Any) -> Any:
        seen = self._see_part(at)
        return self.true()[true_args(at)] if seen is None else seen

    def _see_part(self, at: Any) -> "LazyArray | None":
        parts = parts_of(at, self.ndim) if self.may_be_noted else None
        return None if parts is None else self._see(index(self, parts))

    def _see(self, view: CellView | None) -> "LazyArray | None":
        """The same memory; None: that has no pictures any more."""
        if view is None:
            return None
        name, *args = view.step
        seen = STEPS[name].make(self.stand_in, *args)
        made = LazyArray(self.cell, seen, view.lead, (*self.path, view))
        made._base = self if self._base is None else self._base
        return made

    def __setitem__(self, at: Any, value: Any) -> None:
        if type(at) is int and isinstance(value, np.ndarray) and _is_code_in_c():
            PROCESS.failed = TypeError("NumPy mixes up the rows of what is no array of its own")
            raise PROCESS.failed
        # in a dry run its values are not known anyway
        if not self._set(at, value) and not (STATE.is_dry and self.waits):
            self.true()[true_args(at)] = true_args(value)

    def _set(self, at: Any, value: Any) -> bool:
        """Notes that a part gets a value; False: it cannot be noted."""
        kind = type(value)
        many = kind in (list, tuple) and all(type(each) in (int, float) for each in value)
        is_array = kind is np.ndarray and value.dtype.kind in "biuf"
        if not many and not is_array and not isinstance(value, _NUMBER_TYPES):
            return False
        part = self._see_part(at) if self.stand_in.flags.writeable else None
        if part is None:
            return False
        np.empty_like(part.stand_in)[...] = value  # which complains of what does not fit
        return part.change("set", value)

    def transpose(self, *axes: Any) -> Any:
        self.stand_in.transpose(*axes)  # which complains of wrong ones
        if not self.may_be_noted:
            return self.true().transpose(*axes)
        order = axes[0] if len(axes) == 1 else axes
        return self._see(permute(self, order or range(self.ndim)[::-1]))

    T = property(transpose)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        self.stand_in.swapaxes(axis1, axis2)  # which complains of wrong ones
        order = list(range(self.ndim))
        order[axis1], order[axis2] = order[axis2], order[axis1]
        return self.transpose(order)

    def squeeze(self, axis: Any = None) -> Any:
        return self if axis is None and 1 not in self.shape else self._truly("squeeze", axis)

    def copy(self, order: str = "C") -> Any:
        if not self.may_be_noted or order not in ("C", "K", "A", "F"):
            return self.true().copy(order)  # type: ignore[arg-type]
        like = np.empty_like(self.stand_in, order=order)  # type: ignore[call-overload]
        return self.then(like, "np.copy", order)

    def astype(self, dtype: Any, *args: Any, copy: bool = True, **options: Any) -> Any:
        plain = not args and not options and np.dtype(dtype).kind in "biuf"
        if plain and not copy and np.dtype(dtype) == self.dtype:
            return self
        if not plain or not self.may_be_noted:
            return self._truly("astype", dtype, *args, copy=copy, **options)
        dtype = np.dtype(dtype)
        return self.then(np.empty_like(self.stand_in, dtype), "np.astype", dtype)

    # NumPy's protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__" and len(inputs) == 2 and ufunc in UFUNCS:
            noted = self._note_ufunc(ufunc, *inputs, **options)
            if noted is not None:
                return noted
        if STATE.is_dry and method == "__call__":
            return _forget(ufunc, inputs, **options)
        return _call(getattr(ufunc, method), inputs, options, options.get("out", ()))

    def _note_ufunc(self, ufunc: np.ufunc, one: Any, other: Any, **options: Any) -> Any:
        turned = one is not self
        number = operand(ufunc, self, one if turned else other, turned)
        in_place = set(options) == {"out"} and options["out"][0] is self and not turned
        if number is None or not self.may_be_noted or (options and not in_place):
            return None
        like = result_of(ufunc, self, number, turned)
        if like is None:
            return None
        name = UFUNCS[ufunc]
        if not in_place:
            return self.then(like, f"{name} of" if turned else name, number)
        fits = self.stand_in.flags.writeable and np.can_cast(like.dtype, self.dtype, "same_kind")
        return self if fits and self.change(f"{name} in place", number) else None

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if not any(map(_holds_lazy, args)):  # a column of a table, which gives arrays one by one
            args = [list(each) if _is_series(each) else each for each in args]
        first = args[0] if args else None
        if function in _JOINS:
            noted = _join(function, first, *args[1:], **options)
        elif type(first) is LazyArray and first.may_be_noted and function in _FUNCTIONS:
            return _FUNCTIONS[function](*args, **options)
        else:
            noted = None
        return _call(function, args, options, args) if noted is None else noted

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        options = {} if copy is None else {"copy": copy}
        return self.true().__array__(*([] if dtype is None else [dtype]), **options)

    # everything else looks

    def __getattr__(self, name: str) -> Any:
        # it is being made, or asked for what no array has
        if "stand_in" not in vars(self) or not hasattr(np.ndarray, name):
            raise AttributeError(f"'numpy.ndarray' object has no attribute {name!r}")
        return getattr(self.true(), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not self.waits or not STATE.sends:
            return self.true().__reduce_ex__(protocol)
        return _rebuild, (self.cell, self.form, self.path, self.stand_in.flags.writeable)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.waits:
            made: Any = new_arrays(self.copied_rows(), self.stand_in, self.lead, is_copy=True)
        else:
            made = self.true().copy()
        return memo.setdefault(id(self), made)


# which programs print
LazyArray.__name__ = LazyArray.__qualname__ = "ndarray"
LazyArray.__module__ = "numpy"


# what is set here; all else is NumPy's
_OWN = frozenset({"cell", "stand_in", "lead", "path", "_base", "_value"})
_NUMBER_TYPES = (bool, int, float, np.number)


def _is_code_in_c() -> bool:
    """Whether an item is not set by a line of Python, such as by `np.random.shuffle`, which then
    swaps rows that share memory.
    """
    frame = sys._getframe(2)
    return not opname[frame.f_code.co_code[frame.f_lasti]].startswith("STORE_")


def _look(name: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(self.true(), name)(*args)


for _name in (
    *("iter", "contains", "bool", "int", "float", "complex", "index", "repr", "str", "format"),
    *("buffer", "sizeof"),
):
    setattr(LazyArray, f"__{_name}__", _look(f"__{_name}__"))


def is_lazy(value: Any) -> bool:
    """Whether it is an array that waits, or did so. `isinstance` would be true of all arrays."""
    return type(value) is LazyArray


_NUMBERS = frozenset({int, float, bool, str})


def true_args(value: Any) -> Any:
    """The same with true arrays: of a value, a list, a tuple or a dictionary."""
    if type(value) is LazyArray:
        return value.true()
    if type(value) is list and value and type(value[0]) in _NUMBERS:
        return value  # a list of numbers may be long, and has no arrays
    if type(value) in (tuple, list):
        return type(value)(map(true_args, value))
    return {key: true_args(each) for key, each in value.items()} if type(value) is dict else value


def _holds_lazy(value: Any) -> bool:
    many = value if type(value) in (list, tuple) else [value]
    return any(type(each) is LazyArray for each in many)


def _is_series(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (list, tuple, str, np.ndarray))


def _call(function: Any, args: Any, options: Any, may_return: Any) -> Any:
    """Calls it with true arrays; one that it only returns again stays what it was.

    Args:
        may_return: those that it may return.
    """
    result = function(*true_args(args), **true_args(options))
    for each in may_return:
        if type(each) is LazyArray and each.value() is result:
            return each
    return result


def _forget(ufunc: np.ufunc, inputs: Any, out: Any = (), **options: Any) -> Any:
    """In a dry run: an array like the result, whose values nobody knows."""
    if options or len(out) > 1 or ufunc.nout > 1:
        blame()
    if out:
        return out[0] if type(out[0]) is LazyArray else blame()
    likes = [each.stand_in if type(each) is LazyArray else each for each in inputs]
    few = ufunc(*[small(each) if isinstance(each, np.ndarray) else each for each in likes])
    shape = np.broadcast_shapes(*map(np.shape, likes))
    return new_arrays([], new_stand_in(shape, dense(shape, few.strides), few.dtype))


def new_array(
    recipe: Recipe, shape: Sequence[int], dtype: Any = np.uint8, writeable: bool = True
) -> LazyArray:
    """An array of one picture, in contiguous memory."""
    stand_in = np.empty(shape, dtype)
    stand_in.flags.writeable = writeable
    return new_arrays([recipe], stand_in)


def new_arrays(
    rows: list[Any], stand_in: np.ndarray, lead: Ints = (), is_copy: bool = False
) -> LazyArray:
    """An array of many pictures, in new memory; `rows` and `is_copy` are as of `Cell`."""
    return LazyArray(Cell(rows, _form(stand_in, lead), is_copy), stand_in, lead)


def _form(stand_in: np.ndarray, lead: Ints) -> Form:
    return Form(stand_in.shape, strides_of(stand_in), stand_in.dtype, lead)


def _rebuild(cell: Cell, form: Form, path: tuple[CellView, ...], is_writeable: bool) -> LazyArray:
    shape, strides, dtype, lead = form
    steps = [each * np.dtype(dtype).itemsize for each in strides]
    one = np.empty(1, dtype)
    stand_in = np.lib.stride_tricks.as_strided(one, shape, steps, writeable=is_writeable)
    cell.arrived += 1
    return LazyArray(cell, stand_in, lead, path)


# Joined memory


def _join(function: Any, arrays: Any, axis: int = 0, is_copy: bool = False, **options: Any) -> Any:
    """`np.stack` and `np.concatenate`, of arrays that wait and others; None: it is not noted.

    Args:
        is_copy: whether it is `np.array` of a list, which gives contiguous memory.
    """
    if options or not isinstance(arrays, (list, tuple)) or not isinstance(axis, int):
        return None
    waiting = [each for each in arrays if type(each) is LazyArray and each.may_be_noted]
    if not waiting or not all(isinstance(each, np.ndarray) for each in arrays):
        return None
    first = waiting[0]
    dtype, lead, shapes = first.dtype, first.lead, [each.shape for each in arrays]
    if any(each.lead != lead for each in waiting) or any(each.dtype != dtype for each in arrays):
        return None

    same = all(each is first for each in arrays)
    found = _JOINS[function](lead, shapes, same, axis)
    likes = [each.stand_in if type(each) is LazyArray else each for each in arrays]
    if found is None:
        return None
    strides = function([small(each) for each in likes], axis).strides
    order = range(len(strides))[::-1] if is_copy else strides
    stand_in = new_stand_in(found.shape, dense(found.shape, order), dtype)
    if found.step is not None:
        return first.then(stand_in, *found.step)
    rows = [
        row
        for each in arrays
        for row in rows_of(each, each if type(each) is LazyArray else None, lead)
    ]
    return new_arrays(rows, stand_in, found.lead, is_copy=True)


_JOINS = {np.stack: stack, np.concatenate: concatenate}


# Functions that NumPy makes of views


def _rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    one, other = (dim % m.ndim for dim in axes)
    if one == other:
        return np.rot90(m.true(), k, axes)  # which complains
    order = list(range(m.ndim))
    order[one], order[other] = other, one
    if k % 4 in (2, 3):
        m = np.flip(m, one)
    if k % 4 in (1, 2):
        m = np.flip(m, other)
    return m.transpose(order) if k % 2 else m[:]


def _expand_dims(a: LazyArray, axis: Any) -> Any:
    if not isinstance(axis, int):
        return np.expand_dims(a.true(), axis)
    at: list[Any] = [slice(None)] * a.ndim
    at.insert(range(a.ndim + 1)[axis], None)
    return a[tuple(at)]


def _of_stand_in(function: Any, a: LazyArray, *args: Any, **options: Any) -> Any:
    """Of a function that asks for the form of an array alone."""
    return function(a.stand_in, *args, **options)


def _atleast_3d(*arrays: Any) -> Any:
    if len(arrays) > 1:
        return tuple(map(np.atleast_3d, arrays))
    (array,) = arrays
    return array if array.ndim > 2 else np.atleast_3d(array.true())


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    # NumPy's own Python code for these calls methods
    **{
        each: inspect.unwrap(each)
        for each in (np.transpose, np.swapaxes, np.moveaxis, np.rollaxis, np.flip, np.squeeze)
    },
    **{each: inspect.unwrap(each) for each in (np.shape, np.ndim, np.size)},
    **{
        each: partial(_of_stand_in, each)
        for each in (np.zeros_like, np.ones_like, np.full_like, np.empty_like)
    },
    np.atleast_3d: _atleast_3d,
    np.fliplr: lambda m: m[:, ::-1],
    np.flipud: lambda m: m[::-1],
    np.rot90: _rot90,
    np.expand_dims: _expand_dims,
    np.copy: lambda a, order="K", subok=False: a.copy(order),
}


# Between arrays, pictures and tensors: what the libraries' own functions become


def _array_of(copies: bool) -> Callable[..., Any]:
    """`np.array` or `np.asarray`."""

    def call(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        value = args[0] if args else None
        if type(value) is np.ndarray:
            return original(*args, **options)
        plain = len(args) < 3 and not set(options) - {"dtype", "copy"}
        if not plain or options.get("copy") is False:
            return original(*args, **options)
        made: Any
        if type(value) is LazyArray and value.may_be_noted:
            made = value
        elif type(value) is list and _holds_lazy(value):
            made = _join(np.stack, value, is_copy=True)
        else:
            made = _array_of_picture(value, copies)
        if made is None:
            return _call(original, args, options, args[:1])
        dtype = options.get("dtype", args[1] if len(args) > 1 else None)
        if dtype is not None and np.dtype(dtype) != made.dtype:
            return made.astype(dtype)
        is_copied = made is value and (copies or options.get("copy"))
        return made.copy("K") if is_copied else made

    return call


def _array_of_picture(picture: Any, copies: bool) -> LazyArray | None:
    if not isinstance(picture, PIL.Image.Image) or picture.mode not in PLAIN or not waits("array"):
        return None
    recipe = recipe_of(picture)
    if recipe is None:
        return None
    shape = picture.size[::-1] + ((3,) if picture.mode == "RGB" else ())
    step = "np.array" if copies else "np.asarray"
    return new_array(recipe.then(step), shape, writeable=copies)


def contiguous(original: Callable[..., Any], value: Any, *args: Any, **options: Any) -> Any:
    """`np.ascontiguousarray`, and albumentations' function for it."""
    if type(value) is not LazyArray or args or options or not value.may_be_noted:
        return _call(original, (value, *args), options, (value,))
    return value if value.stand_in.flags.c_contiguous else value.copy()


def _as_tensor(
    original: Callable[..., Any], value: Any, dtype: Any = None, device: Any = None
) -> Any:
    """`torch.from_numpy` and `torch.as_tensor`, which share memory if the dtype is the same."""
    given = {
        name: each for name, each in [("dtype", dtype), ("device", device)] if each is not None
    }
    is_here = device is None or torch.device(device).type == "cpu"
    if type(value) is not LazyArray or not value.may_be_noted or not waits("tensor") or not is_here:
        return original(true_args(value), **given)
    own = _dtype_of(value.dtype)
    if own is None or min(value.strides, default=0) < 0:
        return original(value.true(), **given)  # which complains

    view = CellView(("torch.from_numpy",), value.lead, each=("torch.from_numpy",))
    form = value.form._replace(dtype=own)
    tensor = wrap(LazyTensor(value.cell, form, 0, (*value.path, view)))
    return tensor if dtype is None else tensor.to(dtype)


def _tensor_of(original: Callable[..., Any], value: Any, **options: Any) -> Any:
    """`torch.tensor`, which copies."""
    if type(value) is not LazyArray:
        return original(true_args(value), **options)
    own = _dtype_of(value.dtype)
    plain = not set(options) - {"dtype"} and own is not None and min(value.strides, default=0) >= 0
    if not plain or not value.may_be_noted or not waits("tensor"):
        return original(value.true(), **options)
    dtype = options.get("dtype") or own
    form = Form(value.shape, dense(value.shape, value.strides), dtype, value.lead)
    return new_tensors(value.rows_after("torch.tensor", dtype), form)


@lru_cache
def _dtype_of(dtype: np.dtype) -> torch.dtype | None:
    """PyTorch's; None: it has none."""
    try:
        return torch_dtype(dtype)
    except TypeError:
        return None


def from_array(original: Callable[..., Any], value: Any, mode: Any = None) -> Any:
    """`Image.fromarray`; of one channel the picture would share the array's memory."""
    lazy = type(value) is LazyArray and value.may_be_noted and not value.lead
    if lazy and value.shape[2:] == (3,) and value.dtype == np.uint8 and waits("picture"):
        (recipe,) = value.rows
        if mode in (None, "RGB") and isinstance(recipe, Recipe):
            return new_picture(recipe.then("PIL.fromarray"), value.shape[1::-1], "RGB")
    return original(true_args(value), mode)


replace("numpy", "array", _array_of(True))
replace("numpy", "asarray", _array_of(False))
replace("numpy", "ascontiguousarray", contiguous)
replace("torch", "from_numpy", _as_tensor)
replace("torch", "as_tensor", _as_tensor)
replace("torch", "tensor", _tensor_of)
