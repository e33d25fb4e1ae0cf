"""Arrays of pictures that are made when they are looked at.

A `LazyArray` only says that it is a np.ndarray: a subclass would have memory, and C code would read what is not there yet. It has a
stand-in, an array of the same shape, type and strides whose values nobody reads, on which NumPy itself finds out what a view of it looks
like. C code that wants a true array gets one from `__array__`, or complains of its type.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
import torch

from dali_pipes.adapters.lazy.cells import Cell, View, Waiting, stands_for
from dali_pipes.adapters.lazy.pictures import new_picture, recipe_of
from dali_pipes.adapters.lazy.recipes import COOKS, Recipe, add_cooks
from dali_pipes.adapters.lazy.state import STATE, waits
from dali_pipes.adapters.lazy.tensors import LazyTensor, new_tensor

_VIEWS = {
    np.transpose,
    np.rot90,
    np.flip,
    np.fliplr,
    np.flipud,
    np.moveaxis,
    np.swapaxes,
    np.expand_dims,
    np.squeeze,
}  # functions
_UFUNCS = {np.add, np.subtract, np.multiply, np.divide}
_SMALL = 16  # values of an operand, such as a color
_MOST = 2**26  # values of an array


class LazyArray(Waiting, np.lib.mixins.NDArrayOperatorsMixin, metaclass=stands_for(np.ndarray)):
    """
    Args:
        stand_in: an array like it.
    """

    __array_priority__ = 1000.0

    def __init__(self, cell: Cell, stand_in: np.ndarray, path: tuple[View, ...] = ()):
        self.cell, self.stand_in, self.path = cell, stand_in, path
        cell.viewed = cell.viewed or bool(path)

    @property
    def __class__(self) -> type:
        return np.ndarray

    @property
    def recipe(self) -> Recipe:
        return self.rows[0]

    shape = property(lambda self: self.stand_in.shape)
    dtype = property(lambda self: self.stand_in.dtype)
    ndim = property(lambda self: self.stand_in.ndim)
    size = property(lambda self: self.stand_in.size)
    strides = property(lambda self: self.stand_in.strides)
    nbytes = property(lambda self: self.stand_in.nbytes)
    itemsize = property(lambda self: self.stand_in.itemsize)

    def __len__(self) -> int:
        return len(self.stand_in)

    def true(self) -> np.ndarray:
        """What a program without this would have."""
        return self.value()

    def then(self, stand_in: np.ndarray, name: str, /, *args: Any, **options: Any) -> "LazyArray":
        """New memory after one step more."""
        return LazyArray(Cell([self.recipe.then(name, *args, **options)]), stand_in)

    def seen_as(self, name: str, *args: Any) -> Any:
        """The same memory."""
        seen = COOKS[name](self.stand_in, *args)
        if seen.base is None or seen.ndim < 2:
            return COOKS[name](self.value(), *args)
        return LazyArray(self.cell, seen, (*self.path, View((name, *args), each=(name, *args))))

    # views and copies

    def __getitem__(self, at: Any) -> Any:
        parts = at if isinstance(at, tuple) else (at,)
        if self.waits and all(
            each is None or each is Ellipsis or isinstance(each, slice) for each in parts
        ):
            return self.seen_as("index", at)
        return self.value()[_true(at)]

    def transpose(self, *axes: Any) -> Any:
        return self.seen_as("transposed", *axes) if self.waits else self.value().transpose(*axes)

    @property
    def T(self) -> Any:
        return self.transpose()

    def copy(self, order: str = "C") -> Any:
        return (
            self.then(self.stand_in.copy(), "copy")
            if self.waits and order == "C"
            else self.value().copy(order)
        )

    def astype(
        self,
        dtype: Any,
        order: str = "K",
        casting: str = "unsafe",
        subok: bool = True,
        copy: bool = True,
    ) -> Any:
        if not self.waits or order != "K" or casting != "unsafe":
            return self.value().astype(dtype, order, casting, subok, copy)
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        return self.then(np.empty_like(self.stand_in, dtype), "astype", np.dtype(dtype))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        other = inputs[-1] if inputs[0] is self else inputs[0]
        small = isinstance(other, (int, float, np.generic)) or (
            type(other) is np.ndarray and other.size <= _SMALL
        )
        if (
            ufunc in _UFUNCS
            and method == "__call__"
            and not options
            and small
            and self.waits
            and len(inputs) == 2
        ):
            dtype = ufunc(np.ones((1,) * self.ndim, self.dtype), other).dtype
            shape = np.broadcast_shapes(self.shape, np.shape(other))
            if shape == self.shape and self.ndim > 1:
                name = f"np.{'' if inputs[0] is self else 'r'}{ufunc.__name__}"
                return self.then(np.empty(shape, dtype), name, other, _DTYPES.get(dtype.name))
        out = options.get("out")
        result = getattr(ufunc, method)(*_true(inputs), **_true(options))
        return out[0] if out and len(out) == 1 and isinstance(out[0], LazyArray) else result

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        first = args[0] if args else None
        if function in _VIEWS and type(first) is LazyArray and first.waits and not options:
            return first.seen_as(f"np.{function.__name__}", *args[1:])
        return function(*_true(args), **_true(options))

    # everything else looks

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return (
            self.value().__array__(dtype, copy=copy) if dtype else self.value().__array__(copy=copy)
        )

    def __setitem__(self, at: Any, value: Any) -> None:
        self.value()[_true(at)] = _true(value)

    def __getattr__(self, name: str) -> Any:
        if name in (
            "stand_in",
            "cell",
            "path",
            "__array_struct__",
            "__buffer__",
        ):  # it is being made, or asked for memory
            raise AttributeError(name)
        return getattr(self.value(), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not self.waits or not STATE.sends:
            return self.value().__reduce_ex__(protocol)
        return new_array, (self.recipe, self.shape, self.dtype)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return memo.setdefault(id(self), self.copy())

    __copy__ = copy


LazyArray.__name__ = "ndarray"


def _look(name: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(self.value(), name)(*args)


for _name in (
    "iter",
    "contains",
    "bool",
    "int",
    "float",
    "complex",
    "index",
    "repr",
    "str",
    "format",
    "buffer",
):
    setattr(LazyArray, f"__{_name}__", _look(f"__{_name}__"))


def _true(value: Any) -> Any:
    """The same with true arrays."""
    if type(value) is LazyArray:
        return value.value()
    if type(value) in (tuple, list):
        return type(value)(map(_true, value))
    return {key: _true(each) for key, each in value.items()} if type(value) is dict else value


def new_array(
    recipe: Recipe, shape: tuple[int, ...], dtype: Any = np.uint8, writeable: bool = True
) -> LazyArray:
    stand_in = np.empty(shape, dtype)
    stand_in.flags.writeable = writeable
    return LazyArray(Cell([recipe]), stand_in)


# between arrays, pictures and tensors: what the libraries' own functions become


def array_of(copies: bool) -> Callable[..., Any]:
    """`np.array` or `np.asarray`."""

    def call(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        value = args[0] if args else None
        is_picture = isinstance(value, PIL.Image.Image)
        lazy = is_picture or type(value) is LazyArray
        if (
            not lazy
            or len(args) > 2
            or set(options) - {"dtype", "copy"}
            or options.get("copy") is False
        ):
            return original(*args, **options)
        dtype, made = options.get("dtype", args[1] if len(args) > 1 else None), value
        if is_picture:
            recipe = recipe_of(value) if value.mode in ("RGB", "L") and waits("array") else None
            if recipe is None:
                return original(*args, **options)
            shape = value.size[::-1] + ((3,) if value.mode == "RGB" else ())
            made = new_array(
                recipe.then("array" if copies else "asarray"), shape, writeable=copies
            )
        elif not value.waits:
            return original(value.value(), *args[1:], **options)
        other = dtype is not None and np.dtype(dtype) != made.dtype
        if other:
            return made.astype(dtype)
        return made.copy() if made is value and (copies or options.get("copy")) else made

    return call


def contiguous(original: Callable[..., Any], value: Any, *args: Any, **options: Any) -> Any:
    """`np.ascontiguousarray`, and albumentations' function for it."""
    if type(value) is not LazyArray or args or options or not value.waits:
        return original(_true(value), *args, **options)
    return (
        value
        if value.stand_in.flags.c_contiguous
        else value.then(np.empty(value.shape, value.dtype), "contiguous_array")
    )


def from_numpy(original: Callable[..., Any], value: Any, *args: Any, **options: Any) -> Any:
    """`torch.from_numpy` and `torch.as_tensor`, which share memory."""
    if type(value) is not LazyArray or any(each is not None for each in (*args, *options.values())):
        return original(_true(value), *args, **options)
    if not value.waits or min(value.strides) < 0 or value.dtype.name not in _DTYPES:
        return original(value.value())
    view = View(("from_numpy",), each=("from_numpy",))
    strides = tuple(stride // value.itemsize for stride in value.strides)
    return LazyTensor(
        value.cell, value.shape, _DTYPES[value.dtype.name], 0, (*value.path, view), strides
    )


def tensor_of(original: Callable[..., Any], value: Any, **options: Any) -> Any:
    """`torch.tensor`, which copies."""
    if type(value) is not LazyArray:
        return original(_true(value), **options)
    if not value.waits or set(options) - {"dtype"} or value.dtype.name not in _DTYPES:
        return original(value.value(), **options)
    dtype = options.get("dtype") or _DTYPES[value.dtype.name]
    return new_tensor(value.recipe.then("tensor", dtype), value.shape, dtype)


def convert(original: Callable[..., Any], value: Any) -> Any:
    """`default_convert` of a DataLoader without batches."""
    return torch.as_tensor(value) if type(value) is LazyArray else original(value)


def from_array(original: Callable[..., Any], value: Any, mode: Any = None) -> Any:
    """`Image.fromarray`; of one channel the picture would share the array's memory."""
    rgb = (
        type(value) is LazyArray
        and value.waits
        and value.shape[2:] == (3,)
        and value.dtype == np.uint8
    )
    if rgb and mode in (None, "RGB") and waits("picture"):
        return new_picture(value.recipe.then("fromarray"), value.shape[1::-1], "RGB")
    return original(_true(value), mode)


_DTYPES = {
    "uint8": torch.uint8,
    "float32": torch.float32,
    "float64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
}
add_cooks(
    index=lambda array, at: array[at],
    transposed=lambda array, *axes: array.transpose(*axes),
    copy=lambda array: array.copy(),
    astype=lambda array, dtype: array.astype(dtype),
    array=np.array,
    asarray=np.asarray,
    contiguous_array=np.ascontiguousarray,
    from_numpy=torch.from_numpy,
    tensor=lambda array, dtype: torch.tensor(array, dtype=dtype),
    **{f"np.{function.__name__}": function for function in _VIEWS},
    **{
        f"np.{ufunc.__name__}": lambda array, other, dtype, ufunc=ufunc: ufunc(array, other)
        for ufunc in _UFUNCS
    },
    **{
        f"np.r{ufunc.__name__}": lambda array, other, dtype, ufunc=ufunc: ufunc(other, array)
        for ufunc in _UFUNCS
    },
)
