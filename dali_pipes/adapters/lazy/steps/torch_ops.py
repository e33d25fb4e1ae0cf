"""PyTorch's operators, by what they are in `torch.ops.aten`: `OPERATORS`.

PyTorch's dispatcher has some hundred operators, of which all its functions are made: `x.chunk(2)`
is `split`, `x.movedim(0, 2)` is `permute`, `x.contiguous()` is `clone` or nothing. So these are
few. Each function here says what an operator does to the pictures of a tensor of some form
(`cells.Form`): a view, views, new memory or a change in place; None: it is not noted. Shape and
strides PyTorch says itself, of a tensor without memory.
"""

import itertools
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from dali_pipes.adapters.lazy.cells import CellView
from dali_pipes.adapters.lazy.steps.common import (
    WHOLE,
    Each,
    concatenate,
    for_each_picture,
    index,
    permute,
    place_in_picture,
    plan_nothing,
    plan_repeated,
    sizes_of,
    stack,
)
from dali_pipes.adapters.lazy.steps.step import NoPlace, Step, add

_ATEN = torch.ops.aten


# Views


def _alias(tensor: Any, *_: Any) -> CellView:
    return CellView((), tensor.lead)


def _transpose(tensor: Any, one: int, other: int) -> CellView:
    dims = list(range(len(tensor.shape)))
    dims[one], dims[other] = dims[other], dims[one]
    return permute(tensor, dims)


def _part(tensor: Any, dim: int, part: Any) -> CellView | None:
    parts: list[Any] = [WHOLE] * len(tensor.shape)
    parts[dim] = part
    return index(tensor, parts)


def _slice(
    tensor: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> CellView | None:
    return _part(tensor, dim, slice(start, end, step).indices(tensor.shape[dim]))


def _unsqueeze(tensor: Any, dim: int) -> CellView | None:
    parts: list[Any] = [WHOLE] * len(tensor.shape)
    parts.insert(dim % (len(parts) + 1), None)
    return index(tensor, parts)


def _squeeze(tensor: Any, dims: Any = None) -> CellView | None:
    ndim = len(tensor.shape)
    dims = range(ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {dim % ndim for dim in dims}
    return index(
        tensor,
        [0 if dim in gone and size == 1 else WHOLE for dim, size in enumerate(tensor.shape)],
    )


def _unbind(tensor: Any, dim: int = 0) -> list[CellView] | None:
    return _all([_part(tensor, dim, at) for at in range(tensor.shape[dim])])


def _split(tensor: Any, size: Any, dim: int = 0) -> list[CellView] | None:
    total = tensor.shape[dim]
    sizes = size if isinstance(size, (list, tuple)) else [size] * -(-total // size)
    ends = [0, *itertools.accumulate(sizes)]
    return _all([_slice(tensor, dim, *each) for each in itertools.pairwise(ends)])


def _all(views: list[CellView | None]) -> list[CellView] | None:
    return None if None in views else views  # type: ignore[return-value]


def _view(tensor: Any, shape: Any) -> CellView | None:
    """Another shape of the dimensions in front that number pictures."""
    sides, known = tensor.sides, math.prod(each for each in shape if each != -1)
    total = math.prod(tensor.shape)
    shape = tuple(total // max(known, 1) if each == -1 else each for each in shape)
    is_same = shape[-len(sides) :] == sides and (tensor.lead or len(sides) > 2)
    if not is_same or not tensor.is_in_front or math.prod(shape) != total:
        return None
    return CellView(("torch.view", shape), tuple(range(len(shape) - len(sides))))


def _expand(tensor: Any, shape: Any, *, implicit: bool = False) -> CellView | None:
    own = tensor.shape
    if len(shape) == len(own) and all(
        each in (-1, size) for each, size in zip(shape, own, strict=True)
    ):
        return CellView((), tensor.lead)
    step = ("torch.expand", tuple(shape))
    return None if tensor.lead else CellView(step, each=step)


def plan_expand(row: Any, shape: Any) -> None:
    """One channel as three."""
    own = sizes_of(row)
    if len(shape) == len(own):
        more = [(dim, size) for dim, size in enumerate(shape) if size not in (-1, own[dim])]
        if len(more) == 1:
            dim, size = more[0]
            return plan_repeated(row, size, dim)
    raise NoPlace("one dimension many times")


# New memory


def _clone(tensor: Any, *, memory_format: Any = torch.preserve_format) -> Each:
    return Each(None, otherwise=("torch.clone", memory_format))


def _to(
    tensor: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    layout: Any = None,
    pin_memory: Any = None,
    non_blocking: bool = False,
    memory_format: Any = torch.preserve_format,
) -> Each | None:
    is_here = (device is None or device.type == "cpu") and layout in (None, torch.strided)
    if not is_here or pin_memory or memory_format is None:
        return None
    if dtype in (None, tensor.dtype):
        return _clone(tensor, memory_format=memory_format)
    if tensor.lead:  # its strides are those of the whole
        memory_format = torch.preserve_format
    return Each(("torch.to", dtype, memory_format))


def make_to(tensor: torch.Tensor, dtype: torch.dtype, memory_format: Any) -> torch.Tensor:
    return tensor.to(dtype, memory_format=memory_format)


def _flip(tensor: Any, dims: Any) -> Each | None:
    dims = [dim % len(tensor.shape) for dim in dims]
    if not dims or any(dim in tensor.lead for dim in dims):
        return None
    return Each(("torch.flip", tuple(place_in_picture(tensor, dim) for dim in dims)), tensor.dtype)


def _pad(tensor: Any, pad: Any, value: float = 0) -> Each | None:
    ndim = len(tensor.shape)
    if any(dim in tensor.lead for dim in range(ndim - len(pad) // 2, ndim)):
        return None
    return Each(("torch.constant_pad_nd", tuple(pad), value))


def plan_pad(row: Any, pad: Any, value: float = 0) -> None:
    left, right, top, bottom, *others = (*pad, 0, 0)[: max(len(pad), 4)]
    if not row.axes.endswith("HW") or any(others) or min(pad) < 0:
        raise NoPlace("edges of other dimensions than height and width")
    row.pad(left, top, right, bottom, value)


def _repeat(tensor: Any, repeats: Any) -> Each | None:
    """One channel many times."""
    more = [dim for dim, count in enumerate(repeats) if count != 1]
    if tensor.lead or len(repeats) != len(tensor.shape) or len(more) != 1:
        return None
    (dim,) = more
    is_one = tensor.shape[dim] == 1 and repeats[dim] > 0
    return Each(("repeated", repeats[dim], dim)) if is_one else None


def plan_flip(row: Any, dims: Any) -> None:
    for dim in dims:
        row.reverse(dim)


# Arithmetic and changes in place


def _arithmetic(name: str, func: Any, in_place: bool = False) -> Callable[..., Each | None]:
    """
    Args:
        name: of the row.
        func: the operator that gives new memory.
    """

    def form(tensor: Any, other: Any, *more: Any, **options: Any) -> Each | None:
        if more or options or (other := _operand(tensor, other)) is None:
            return None
        # PyTorch says it, of one number, and complains of what it would
        dtype = func(_one(tensor.dtype, max(len(tensor.shape), 1)), other).dtype
        if in_place and not torch.can_cast(dtype, tensor.dtype):
            return None  # PyTorch complains
        return Each((name, other), dtype, in_place=in_place)

    return form


def _operand(tensor: Any, value: Any) -> Any:
    """What each picture of a tensor is computed with; None: it cannot be said."""
    if isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, torch.Tensor) or not _is_plain(value):
        return None
    return value if not value.ndim else for_each_picture(tensor, value)


def _is_plain(tensor: torch.Tensor) -> bool:
    is_here = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return is_here and not tensor.requires_grad


@lru_cache
def _one(dtype: torch.dtype, ndim: int) -> torch.Tensor:
    return torch.ones((1,) * ndim, dtype=dtype, device="cpu")


def _fill(tensor: Any, value: Any = 0) -> Each | None:
    if isinstance(value, torch.Tensor):
        if value.ndim or value.device.type != "cpu":
            return None
        value = value.item()
    # which complains of what does not fit
    torch.empty(1, dtype=tensor.dtype, device="cpu").fill_(value)
    return Each(("set", value), in_place=True)


def _copy(tensor: Any, source: Any, non_blocking: bool = False) -> Each | None:
    sides = tensor.sides
    front = source.shape[: max(source.ndim - len(sides), 0)]
    is_one = math.prod(front) == 1 and source.numel() <= math.prod(sides)
    if not is_one or not tensor.is_in_front or not _is_plain(source):
        return None
    return Each(("set", source.reshape(source.shape[len(front) :])), in_place=True)


# The table

add(
    Step("torch.view", _ATEN.view.default),
    Step("torch.expand", _ATEN.expand.default, plan=plan_expand),
    Step(
        "torch.clone",
        lambda tensor, memory_format: tensor.clone(memory_format=memory_format),
        plan=plan_nothing,
    ),
    Step("torch.to", make_to, plan=lambda row, dtype, _: row.cast(dtype)),
    Step("torch.flip", _ATEN.flip.default, plan=plan_flip),
    Step("torch.constant_pad_nd", _ATEN.constant_pad_nd.default, plan=plan_pad),
)
_FORMS: dict[str, Callable[..., Any]] = {
    "alias.default detach.default": _alias,
    "permute.default": permute,
    "transpose.int": _transpose,
    "unsqueeze.default": _unsqueeze,
    "squeeze.dims squeeze.dim squeeze.default": _squeeze,
    "select.int": _part,
    "slice.Tensor": _slice,
    "unbind.int": _unbind,
    "split.Tensor split_with_sizes.default": _split,
    "view.default _unsafe_view.default": _view,
    "expand.default": _expand,
    "clone.default": _clone,
    "_to_copy.default": _to,
    "flip.default": _flip,
    "constant_pad_nd.default": _pad,
    "repeat.default": _repeat,
    "stack.default": stack,
    "cat.default": concatenate,
    "rsub.Scalar": _arithmetic("sub of", _ATEN.rsub.Scalar),
    "fill_.Scalar fill_.Tensor zero_.default": _fill,
    "copy_.default": _copy,
}
for _name in ("add", "sub", "mul", "div"):
    _func = getattr(_ATEN, _name).Tensor
    _FORMS[f"{_name}.Tensor"] = _arithmetic(_name, _func)
    _FORMS[f"{_name}_.Tensor"] = _arithmetic(f"{_name} in place", _func, in_place=True)


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_ATEN, packet), overload)


OPERATORS = {_operator(name): form for names, form in _FORMS.items() for name in names.split()}
