"""Tensors of pictures that are made when they are looked at.

A `LazyTensor` is a subclass of torch.Tensor without memory. What PyTorch does with it comes to `__torch_dispatch__`: some things are
noted (`_NOTED`), for all others the true tensor is made.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map
from torchvision import tv_tensors

from dali_pipes.adapters.lazy.cells import Cell, View, Waiting, stands_for
from dali_pipes.adapters.lazy.recipes import COOKS, Recipe, add_cooks
from dali_pipes.adapters.lazy.state import STATE

Ints = tuple[int, ...]


class LazyTensor(Waiting, torch.Tensor, metaclass=stands_for(torch.Tensor, type(torch.Tensor))):
    """
    Args:
        cell: where it is.
        lead: how many dimensions number its pictures; those behind them are a picture.
        path: how it looks into the cell.
        strides: None: those of contiguous memory.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls,
        cell: Cell,
        shape: Ints,
        dtype: torch.dtype,
        lead: int = 0,
        path: Any = (),
        strides: Any = None,
    ) -> "LazyTensor":
        made = torch.Tensor._make_wrapper_subclass(cls, shape, strides, dtype=dtype, device="cpu")
        torch._C._set_throw_on_mutable_data_ptr(
            made
        )  # C++ code gets an error instead of a null pointer
        made.cell, made.lead, made.path = cell, lead, path
        cell.viewed = cell.viewed or bool(path)
        return made

    def __init__(self, *_: Any, **__: Any):
        """`tv_tensors.Image(tensor)` comes here too, with arguments of its own."""

    @property
    def sides(self) -> Ints:
        """The shape of one picture."""
        return tuple(self.shape[self.lead :])

    def true(self) -> torch.Tensor:
        """What a program without this would have."""
        return self.value().requires_grad_() if self.requires_grad else self.value()

    def then(
        self, sides: Ints, dtype: torch.dtype, name: str, /, *args: Any, **options: Any
    ) -> "LazyTensor":
        """New memory: every picture after one step more."""
        rows = [
            row.then(name, *args, **options)
            if isinstance(row, Recipe)
            else COOKS[name](row, *args, **options)
            for row in self.rows
        ]
        strides = self.stride() if not self.lead and sides == self.sides else None
        return _of_rows(rows, (*self.shape[: self.lead], *sides), dtype, self.lead, strides)

    def seen_as(
        self, view: View, shape: Ints, lead: int, strides: Ints | None = None
    ) -> "LazyTensor":
        """The same memory."""
        return LazyTensor(self.cell, shape, self.dtype, lead, (*self.path, view), strides)

    def change(self, name: str, /, *args: Any, **options: Any) -> bool:
        """Notes a step that changes the memory in place; False: it can not be noted."""
        if (
            self.path
            or self.cell.viewed
            or not self.waits
            or not all(isinstance(row, Recipe) for row in self.cell.rows)
        ):
            return False
        self.cell.rows = [row.then(name, *args, **options) for row in self.cell.rows]
        return True

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _NOTED and (noted := _NOTED[func](*args, **kwargs)) is not None:
            return noted
        taken = tree_map(
            lambda each: each.value() if isinstance(each, LazyTensor) else each, (args, kwargs)
        )
        result = func(*taken[0], **taken[1])
        if not func._schema.name.endswith("_"):
            return result
        if args[0].shape != taken[0][0].shape:
            raise NotImplementedError(f"{func} gives a lazy tensor another shape in place")
        return args[0]

    # what reads memory without PyTorch's dispatcher

    def numpy(self, **options: Any) -> np.ndarray:
        return self.value().numpy(**options)

    def tolist(self) -> Any:
        return self.value().tolist()

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        return self.value().__array__(*args, **options)

    def __dlpack__(self, **options: Any) -> Any:
        return self.value().__dlpack__(**options)

    def data_ptr(self) -> int:
        return self.value().data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.value().untyped_storage()

    def storage(self) -> Any:
        return self.value().storage()

    def _typed_storage(self) -> Any:
        return self.value()._typed_storage()

    def share_memory_(self) -> "LazyTensor":
        self.value().share_memory_()
        return self

    def is_shared(self) -> bool:
        return self.value().is_shared()

    def __repr__(self, **options: Any) -> str:
        return self.true().__repr__(**options)

    # what leaves it lazy

    def pin_memory(self, device: Any = None) -> torch.Tensor:
        return self if self.waits else self.value().pin_memory(device)

    def as_subclass(self, cls: type) -> torch.Tensor:
        lazy = _LAZY.get(cls, cls)
        if not self.waits or not issubclass(lazy, LazyTensor):
            return self.value().as_subclass(getattr(cls, "stands_for", cls))
        return lazy(self.cell, tuple(self.shape), self.dtype, self.lead, self.path, self.stride())

    def __setitem__(self, at: Any, value: Any) -> None:
        box = _box(at, self.shape)
        plain = isinstance(value, (int, float)) or type(value) is torch.Tensor
        if box is None or not plain or not self.change("erase_", *box, value):
            self.value()[at] = value

    def __copy__(self) -> "LazyTensor":
        return self.as_subclass(type(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if not self.waits:
            return memo.setdefault(id(self), self.true().detach().clone())
        copied = _of_rows(
            _rows(self, self.lead), tuple(self.shape), self.dtype, self.lead, self.stride()
        )
        return memo.setdefault(id(self), copied.as_subclass(type(self)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not self.waits or not STATE.sends:
            return self.true().__reduce_ex__(protocol)
        made = [row for row in self.rows if not isinstance(row, Recipe)]
        rows = [row if isinstance(row, Recipe) else None for row in self.rows]
        pictures = rows, torch.stack(made) if made else None
        return _rebuilt, (
            type(self),
            *pictures,
            tuple(self.shape),
            self.dtype,
            self.lead,
            self.stride(),
        )


class _Wrapped:
    """A class of torchvision's, which few calls keep.

    torchvision goes through the bases of a tensor up to its own; `LazyTensor`, which stands for torch.Tensor, must come after these.
    """

    shape, ndim, dtype, device = (
        getattr(torch.Tensor, name) for name in ("shape", "ndim", "dtype", "device")
    )
    __new__, __init__, __repr__, __deepcopy__ = (
        LazyTensor.__new__,
        LazyTensor.__init__,
        LazyTensor.__repr__,
        LazyTensor.__deepcopy__,
    )
    __torch_function__ = LazyTensor.__torch_function__

    def true(self) -> torch.Tensor:
        return super().true().as_subclass(type(self).stands_for)

    def clone(self, **options: Any) -> torch.Tensor:
        return super().clone(**options).as_subclass(type(self).stands_for)

    def detach(self) -> torch.Tensor:
        return super().detach().as_subclass(type(self).stands_for)

    def to(self, *args: Any, **options: Any) -> torch.Tensor:
        return super().to(*args, **options).as_subclass(type(self).stands_for)


class LazyImage(_Wrapped, tv_tensors.Image, LazyTensor):
    stands_for = tv_tensors.Image


class LazyMask(_Wrapped, tv_tensors.Mask, LazyTensor):
    stands_for = tv_tensors.Mask


LazyTensor.__name__, LazyImage.__name__, LazyMask.__name__ = (
    "Tensor",
    "Image",
    "Mask",
)  # which programs look at, too
_LAZY = {torch.Tensor: LazyTensor, tv_tensors.Image: LazyImage, tv_tensors.Mask: LazyMask}


def new_tensor(
    recipe: Recipe, shape: Ints, dtype: torch.dtype, strides: Ints | None = None
) -> LazyTensor:
    return LazyTensor(Cell([recipe]), shape, dtype, strides=strides)


def collated(original: Callable[..., Any], batch: Any, **options: Any) -> torch.Tensor:
    """`collate_tensor_fn`, which would stack into shared memory."""
    return torch.stack(batch) if any(map(_waits, batch)) else original(batch, **options)


def wrapped(
    original: Callable[..., Any], wrappee: torch.Tensor, *, like: Any, **options: Any
) -> torch.Tensor:
    """`tv_tensors.wrap`: also a true tensor may become like a lazy one."""
    return (
        wrappee.as_subclass(type(like).stands_for)
        if isinstance(like, _Wrapped)
        else original(wrappee, like=like, **options)
    )


def reduced(original: Callable[..., Any], tensor: torch.Tensor) -> Any:
    """`reduce_tensor`, by which a worker sends tensors."""
    if _waits(tensor) and STATE.sends:
        return tensor.__reduce_ex__(4)
    return original(tensor.true() if isinstance(tensor, LazyTensor) else tensor)


def _rebuilt(
    kind: type,
    rows: list[Any],
    made: Any,
    shape: Ints,
    dtype: torch.dtype,
    lead: int,
    strides: Ints,
) -> torch.Tensor:
    rest = iter(() if made is None else made)
    return _of_rows(
        [next(rest) if row is None else row for row in rows], shape, dtype, lead, strides
    ).as_subclass(kind)


def _of_rows(
    rows: list[Any], shape: Ints, dtype: torch.dtype, lead: int, strides: Ints | None = None
) -> LazyTensor:
    return LazyTensor(Cell(rows, tuple(shape[:lead])), tuple(shape), dtype, lead, strides=strides)


def _rows(tensor: torch.Tensor, lead: int) -> list[Any]:
    """Copies of the rows of any tensor."""
    if _waits(tensor):
        return [row if isinstance(row, Recipe) else row.clone() for row in tensor.rows]
    true = tensor.value() if isinstance(tensor, LazyTensor) else tensor
    return list(true.detach().clone().reshape(-1, *true.shape[lead:]))


def _waits(tensor: Any) -> bool:
    return isinstance(tensor, LazyTensor) and tensor.waits


# What PyTorch does that is noted. Each returns None for what it can not note.


def _stack(tensors: Any, dim: int = 0) -> Any:
    first, lead = tensors[0], _common_lead(tensors)
    if dim or lead is None or any(each.shape != first.shape for each in tensors):
        return None
    return _of_rows(
        [row for each in tensors for row in _rows(each, lead)],
        (len(tensors), *first.shape),
        first.dtype,
        lead + 1,
    )


def _cat(tensors: Any, dim: int = 0) -> Any:
    first, lead = tensors[0], _common_lead(tensors)
    if dim or not lead or any(each.shape[1:] != first.shape[1:] for each in tensors):
        return None
    shape = (sum(map(len, tensors)), *first.shape[1:])
    return _of_rows(
        [row for each in tensors for row in _rows(each, lead)], shape, first.dtype, lead
    )


def _common_lead(tensors: Any) -> int | None:
    """How many dimensions number pictures in all of these; None: they do not go together, or none waits."""
    leads = {each.lead for each in tensors if _waits(each)}
    alike = all(type(each) in _KINDS and each.dtype == tensors[0].dtype for each in tensors)
    return leads.pop() if alike and len(leads) == 1 else None


def _alias(tensor: Any, *_: Any, **__: Any) -> Any:
    return (
        LazyTensor(
            tensor.cell,
            tuple(tensor.shape),
            tensor.dtype,
            tensor.lead,
            tensor.path,
            tensor.stride(),
        )
        if tensor.waits
        else None
    )


def _clone(tensor: Any, *, memory_format: Any = torch.preserve_format) -> Any:
    if not tensor.waits or memory_format not in (torch.preserve_format, torch.contiguous_format):
        return None
    rows, kept = (
        _rows(tensor, tensor.lead),
        memory_format == torch.preserve_format and not tensor.lead,
    )
    rows = (
        rows
        if kept or tensor.lead
        else [
            row.then("contiguous") if isinstance(row, Recipe) else row.contiguous() for row in rows
        ]
    )
    return _of_rows(
        rows, tensor.shape, tensor.dtype, tensor.lead, tensor.stride() if kept else None
    )


def _to(tensor: Any, **options: Any) -> Any:
    dtype = options.get("dtype")
    if not tensor.waits or set(options) - {"dtype", "non_blocking", "copy"} or dtype is None:
        return None
    return tensor.then(tensor.sides, dtype, "to", dtype)


def _view(tensor: Any, shape: Any) -> Any:
    known = math.prod(each for each in shape if each != -1)
    shape, sides = (
        tuple(tensor.numel() // max(known, 1) if each == -1 else each for each in shape),
        tensor.sides,
    )
    fits = tensor.waits and shape[-len(sides) :] == sides and math.prod(shape) == tensor.numel()
    if not fits or not (tensor.is_contiguous() or shape == tensor.shape):
        return None
    strides = tensor.stride() if shape == tensor.shape else None
    return tensor.seen_as(View(("view", shape)), shape, len(shape) - len(sides), strides)


def _unsqueeze(tensor: Any, dim: int) -> Any:
    if not tensor.waits or dim:
        return None
    shape, strides, inside = (
        (1, *tensor.shape),
        (tensor.numel(), *tensor.stride()),
        len(tensor.sides) < 3,
    )
    view = View(("unsqueeze", 0), each=("unsqueeze", 0) if inside and not tensor.lead else None)
    return (
        None
        if inside and tensor.lead
        else tensor.seen_as(view, shape, tensor.lead + (not inside), strides)
    )


def _squeeze(tensor: Any, dim: int) -> Any:
    if not tensor.waits or dim or tensor.shape[0] != 1 or tensor.ndim < 3:
        return None
    view = View(("squeeze", 0), each=None if tensor.lead else ("squeeze", 0))
    return tensor.seen_as(
        view, tuple(tensor.shape[1:]), max(tensor.lead - 1, 0), tensor.stride()[1:]
    )


def _expand(tensor: Any, shape: Any, **_: Any) -> Any:
    same = len(shape) == tensor.ndim and all(
        each in (-1, own) for each, own in zip(shape, tensor.shape, strict=True)
    )
    return _alias(tensor) if same else None


def _select(tensor: Any, dim: int, at: int) -> Any:
    if not tensor.waits or dim or not tensor.lead:
        return None
    count, at = math.prod(tensor.shape[1 : tensor.lead]), at % tensor.shape[0]
    view = View(("select", 0, at), slice(at * count, (at + 1) * count))
    return tensor.seen_as(view, tuple(tensor.shape[1:]), tensor.lead - 1, tensor.stride()[1:])


def _unbind(tensor: Any, dim: int = 0) -> Any:
    parts = [_select(tensor, dim, at) for at in range(tensor.shape[0])]
    return parts if parts and parts[0] is not None else None


def _permute(tensor: Any, dims: Any) -> Any:
    lead, dims = tensor.lead, tuple(dim % tensor.ndim for dim in dims)
    if not tensor.waits or dims[:lead] != tuple(range(lead)):
        return None
    each = ("permute", tuple(dim - lead for dim in dims[lead:]))
    shape, strides = (tuple(of[dim] for dim in dims) for of in (tensor.shape, tensor.stride()))
    return tensor.seen_as(View(("permute", dims), each=each), shape, lead, strides)


def _slice(tensor: Any, dim: int = 0, first: Any = None, last: Any = None, step: int = 1) -> Any:
    dim, size = dim % tensor.ndim, tensor.shape[dim]
    first, last, step = slice(first, last, step).indices(size)
    if not tensor.waits or step != 1 or first >= last or dim < tensor.lead > 1:
        return None
    inside, shape = (
        dim >= tensor.lead,
        (*tensor.shape[:dim], last - first, *tensor.shape[dim + 1 :]),
    )
    each, rows = (
        (("slice", dim - tensor.lead, first, last), slice(None))
        if inside
        else (None, slice(first, last))
    )
    return tensor.seen_as(
        View(("slice", dim, first, last), rows, each), shape, tensor.lead, tensor.stride()
    )


def _flip(tensor: Any, dims: Any) -> Any:
    dims = tuple(dim % tensor.ndim - tensor.lead for dim in dims)
    return (
        tensor.then(tensor.sides, tensor.dtype, "flip", dims)
        if tensor.waits and min(dims) >= 0
        else None
    )


def _with_number(name: str) -> Callable[..., Any]:
    def noted(tensor: Any, other: Any, **options: Any) -> Any:
        if not _waits(tensor) or options or not isinstance(other, (int, float)):
            return None
        dtype = torch.result_type(torch.empty(1, dtype=tensor.dtype), other)
        dtype = (
            torch.get_default_dtype() if name == "div" and not dtype.is_floating_point else dtype
        )
        return tensor.then(tensor.sides, dtype, name, other, dtype)

    return noted


def _box(at: Any, shape: Any) -> Ints | None:
    """Top, left, height and width of an index of all channels: [:, a:b, c:d]."""
    if (
        len(shape) != 3
        or not isinstance(at, tuple)
        or len(at) != 3
        or not all(isinstance(each, slice) for each in at)
    ):
        return None
    channels, *region = (each.indices(size) for each, size in zip(at, shape, strict=True))
    if channels != (0, shape[0], 1) or any(
        step != 1 or first >= last for first, last, step in region
    ):
        return None
    (top, bottom, _), (left, right, _) = region
    return top, left, bottom - top, right - left


def _erase(
    tensor: torch.Tensor, top: int, left: int, height: int, width: int, value: Any
) -> torch.Tensor:
    tensor[:, top : top + height, left : left + width] = value
    return tensor


def _number_cook(name: str) -> Callable[..., torch.Tensor]:
    return lambda tensor, other, dtype: getattr(tensor.to(dtype), name)(other)


_KINDS = {torch.Tensor, LazyTensor, LazyImage, LazyMask}
_ARITHMETIC = ("div", "mul", "sub", "add")
_aten = torch.ops.aten
_NOTED: dict[Any, Callable[..., Any]] = {
    _aten.stack.default: _stack,
    _aten.cat.default: _cat,
    _aten.detach.default: _alias,
    _aten.alias.default: _alias,
    _aten.clone.default: _clone,
    _aten._to_copy.default: _to,
    _aten.view.default: _view,
    _aten._unsafe_view.default: _view,
    _aten.unsqueeze.default: _unsqueeze,
    _aten.squeeze.dim: _squeeze,
    _aten.expand.default: _expand,
    _aten.select.int: _select,
    _aten.unbind.int: _unbind,
    _aten.permute.default: _permute,
    _aten.slice.Tensor: _slice,
    _aten.flip.default: _flip,
} | {getattr(_aten, name).Tensor: _with_number(name) for name in _ARITHMETIC}
add_cooks(
    to=lambda tensor, dtype: tensor.to(dtype),
    contiguous=torch.Tensor.contiguous,
    view=torch.Tensor.view,
    select=torch.Tensor.select,
    squeeze=torch.Tensor.squeeze,
    unsqueeze=torch.Tensor.unsqueeze,
    permute=torch.Tensor.permute,
    slice=lambda tensor, dim, first, last: tensor.narrow(dim, first, last - first),
    flip=torch.Tensor.flip,
    erase_=_erase,
    **{name: _number_cook(name) for name in _ARITHMETIC},
)
