"""PyTorch's operators, by their names in `torch.ops.aten`: `OPERATORS`.

PyTorch's dispatcher has some hundred operators, of which all its functions are made: `x.chunk(2)`
is `split`, `x.movedim(0, 2)` is `permute`, `x.contiguous()` is `clone` or nothing. So these rows
are few. The `form` of a row says what an operator does to each picture of a tensor, and which
dimensions of the result number pictures; shape and strides PyTorch says itself, of a tensor without
memory.
"""

import itertools
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from dali_pipes.adapters.lazy.cells import CellView, Ints
from dali_pipes.adapters.lazy.steps.step import STEPS, NoPlace, Step, add

_ATEN = torch.ops.aten
OPERATORS: dict[Any, Step] = {}
MOST_NUMBERS = 16  # of a tensor or an array in arithmetic, such as a color


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


def _operator(
    overloads: str, form: Any, make: Any = None, plan: Any = None, name: str | None = None
) -> None:
    """Adds a row, for one overload or more.

    Args:
        overloads: as in "permute.default".
        make: None: the first of these.
    """
    found = [
        getattr(getattr(_ATEN, packet), overload)
        for packet, _, overload in (each.partition(".") for each in overloads.split())
    ]
    name = name or f"torch.{overloads.partition('.')[0].lstrip('_')}"
    step = Step(name, make or found[0], form, plan)
    add(step)
    OPERATORS.update(dict.fromkeys(found, step))


def _noted_as_another(overload: str, form: Any) -> None:
    """An operator whose steps are in other rows."""
    packet, _, last = overload.partition(".")
    func = getattr(getattr(_ATEN, packet), last)
    OPERATORS[func] = Step("", func, form)


def _place(tensor: Any, dim: int) -> int:
    """The number of a dimension among those of one picture."""
    return dim - sum(lead < dim for lead in tensor.lead)


def _wrapped(tensor: Any, dim: int) -> int:
    return dim % len(tensor.shape)


# Views


def _alias(tensor: Any, *_: Any) -> CellView:
    return CellView((), tensor.lead)


def _permute(tensor: Any, dims: Any) -> CellView:
    dims = tuple(_wrapped(tensor, dim) for dim in dims)
    inside = tuple(_place(tensor, dim) for dim in dims if dim not in tensor.lead)
    moved = inside != tuple(range(len(inside)))
    return CellView(
        ("torch.permute", dims),
        tuple(dims.index(dim) for dim in tensor.lead),
        each=("torch.permute", inside) if moved else None,
    )


def _transpose(tensor: Any, one: int, other: int) -> CellView:
    dims = list(range(len(tensor.shape)))
    dims[one], dims[other] = dims[other], dims[one]
    return _permute(tensor, dims)


def _t(tensor: Any) -> CellView:
    return _permute(tensor, range(len(tensor.shape))[::-1])


def _unsqueeze(tensor: Any, dim: int) -> CellView:
    """A dimension of a gray picture if it has two, else one that numbers pictures."""
    dim %= len(tensor.shape) + 1
    lead = tuple(each + (each >= dim) for each in tensor.lead)
    if len(tensor.sides) > 2:
        return CellView(("torch.unsqueeze", dim), (*lead, dim))
    return CellView(("torch.unsqueeze", dim), lead, each=("torch.unsqueeze", _place(tensor, dim)))


def _squeeze(tensor: Any, dims: Any = None) -> CellView | None:
    shape = tensor.shape
    dims = range(len(shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {dim for dim in (_wrapped(tensor, dim) for dim in dims) if shape[dim] == 1}
    inside = sorted(_place(tensor, dim) for dim in gone if dim not in tensor.lead)
    if len(tensor.sides) - len(inside) < 2:
        return None
    lead = tuple(each - sum(dim < each for dim in gone) for each in tensor.lead if each not in gone)
    each = ("torch.squeeze", tuple(inside)) if inside else None
    return CellView(("torch.squeeze", tuple(sorted(gone))), lead, each=each)


def pick_pictures(tensor: Any, dim: int, chosen: Any) -> tuple[int, ...]:
    """Which pictures are left of those that a dimension of `lead` numbers."""
    counts = [tensor.shape[each] for each in tensor.lead]
    at = tensor.lead.index(dim)
    if len(counts) == 1:
        return tuple(chosen)
    numbers = np.arange(math.prod(counts)).reshape(counts)
    return tuple(numbers.take(list(chosen), at).ravel().tolist())


def _select(tensor: Any, dim: int, at: int) -> CellView | None:
    dim = _wrapped(tensor, dim)
    size = tensor.shape[dim]
    if not -size <= at < size:
        return None  # PyTorch complains
    lead = tuple(each - (each > dim) for each in tensor.lead if each != dim)
    step = ("torch.select", dim, at)
    if dim in tensor.lead:
        return CellView(step, lead, pick_pictures(tensor, dim, [at % size]))
    if len(tensor.sides) < 3:
        return None
    return CellView(step, lead, each=("torch.select", _place(tensor, dim), at))


def _slice(
    tensor: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> CellView | None:
    dim = _wrapped(tensor, dim)
    part = slice(start, end, step).indices(tensor.shape[dim]) if step > 0 else (0, 0, 1)
    if part[0] >= part[1]:
        return None
    if dim in tensor.lead:
        rows = pick_pictures(tensor, dim, range(*part))
        return CellView(("torch.slice", dim, *part), tensor.lead, rows)
    each = (
        None if part == (0, tensor.shape[dim], 1) else ("torch.slice", _place(tensor, dim), *part)
    )
    return CellView(("torch.slice", dim, *part), tensor.lead, each=each)


def _unbind(tensor: Any, dim: int = 0) -> list[CellView] | None:
    parts = [_select(tensor, dim, at) for at in range(tensor.shape[dim])]
    return None if None in parts else parts  # type: ignore[return-value]


def _split(tensor: Any, size: Any, dim: int = 0) -> list[CellView] | None:
    total = tensor.shape[dim]
    if isinstance(size, int):
        sizes = [size] * (total // size) + [total % size] * bool(total % size) if size > 0 else []
    else:
        sizes = list(size)
    if sum(sizes) != total or not sizes:
        return None
    ends = list(itertools.accumulate(sizes))
    parts = [_slice(tensor, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return None if None in parts else parts  # type: ignore[return-value]


def _view(tensor: Any, shape: Any) -> CellView | None:
    """Another shape: of all of a picture, or of dimensions in front that number pictures."""
    known = math.prod(each for each in shape if each != -1)
    total = math.prod(tensor.shape)
    shape = tuple(total // max(known, 1) if each == -1 else each for each in shape)
    if math.prod(shape) != total or len(shape) < 2:
        return None
    sides, step = tensor.sides, ("torch.view", shape)
    if tensor.is_in_front and shape[-len(sides) :] == sides and (tensor.lead or len(sides) > 2):
        return CellView(step, tuple(range(len(shape) - len(sides))))
    return None if tensor.lead else CellView(step, each=step)


def _expand(tensor: Any, shape: Any, *, implicit: bool = False) -> CellView | None:
    own = tensor.shape
    if len(shape) == len(own) and all(
        each in (-1, size) for each, size in zip(shape, own, strict=True)
    ):
        return CellView((), tensor.lead)
    step = ("torch.expand", tuple(shape))
    return None if tensor.lead else CellView(step, each=step)


def plan_permute(row: Any, dims: Any) -> None:
    row.permute(*dims)


def plan_squeeze(row: Any, dims: Any) -> None:
    for dim in sorted(dims, reverse=True):
        row.squeeze(dim)


def plan_select(row: Any, dim: int, at: int) -> None:
    row.squeeze(dim)


def plan_slice(row: Any, dim: int, start: int, end: int, step: int) -> None:
    if step != 1:
        raise NoPlace("each second pixel, or one in more")
    row.slice(dim, start, end)


def plan_shape(row: Any, shape: Any) -> None:
    """Another shape, if it has one channel more or less and no other dimension is another."""
    now = sizes_of(row)
    if now != tuple(shape):
        if [each for each in now if each != 1] != [each for each in shape if each != 1]:
            raise NoPlace("another shape")
        if "C" in row.axes:
            row.squeeze(row.axes.index("C"))
        if len(shape) == 3:
            row.unsqueeze(tuple(shape).index(1))


def plan_expand(row: Any, shape: Any) -> None:
    """One channel as three."""
    own = sizes_of(row)
    if len(shape) == len(own):
        more = [(dim, size) for dim, size in enumerate(shape) if size not in (-1, own[dim])]
        if len(more) == 1:
            dim, size = more[0]
            return plan_repeated(row, size, dim)
    raise NoPlace("one dimension many times")


def sizes_of(row: Any) -> tuple[int, ...]:
    """Its shape."""
    sizes = {"C": row.channels, "H": row.size[0], "W": row.size[1]}
    return tuple(sizes[axis] for axis in row.axes)


def plan_nothing(row: Any, *_: Any) -> None:
    """It changes no pixel."""


_noted_as_another("alias.default", _alias)
_noted_as_another("detach.default", _alias)
_operator("permute.default", _permute, plan=plan_permute)
_noted_as_another("transpose.int", _transpose)
_noted_as_another("t.default", _t)
_operator("unsqueeze.default", _unsqueeze, plan=lambda row, dim: row.unsqueeze(dim))
_operator("squeeze.dims squeeze.dim squeeze.default", _squeeze, plan=plan_squeeze)
_operator("select.int", _select, plan=plan_select)
_operator("slice.Tensor", _slice, plan=plan_slice)
_noted_as_another("unbind.int", _unbind)
_noted_as_another("split.Tensor", _split)
_noted_as_another("split_with_sizes.default", _split)
_operator("view.default _unsafe_view.default", _view, plan=plan_shape)
_operator("expand.default", _expand, plan=plan_expand)


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
    dims = [_wrapped(tensor, dim) for dim in dims]
    if not dims or any(dim in tensor.lead for dim in dims):
        return None
    return Each(("torch.flip", tuple(_place(tensor, dim) for dim in dims)), tensor.dtype)


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


def _rot90(tensor: Any, k: int = 1, dims: Any = (0, 1)) -> Each | None:
    dims = [_wrapped(tensor, dim) for dim in dims]
    if any(dim in tensor.lead for dim in dims) or len(dims) != 2:
        return None
    return Each(("torch.rot90", k, tuple(_place(tensor, dim) for dim in dims)))


def _repeat(tensor: Any, repeats: Any) -> Each | None:
    return None if tensor.lead else Each(("torch.repeat", tuple(repeats)))


def _index(tensor: Any, indices: Any) -> Each | None:
    """Some channels, or all in another order."""
    places = [at for at, each in enumerate(indices) if each is not None]
    if len(places) != 1 or places[0] in tensor.lead:
        return None
    index = indices[places[0]]
    if index.ndim != 1 or index.dtype != torch.int64 or not 0 < len(index) <= MOST_NUMBERS:
        return None
    return Each(("torch.index", _place(tensor, places[0]), tuple(index.tolist())))


def make_index(tensor: torch.Tensor, dim: int, order: Any) -> torch.Tensor:
    at: Any = (*(slice(None),) * dim, torch.tensor(order, dtype=torch.int64, device="cpu"))
    return tensor[at]


def plan_flip(row: Any, dims: Any) -> None:
    for dim in dims:
        row.reverse(dim)


def plan_rot90(row: Any, k: int = 1, dims: Any = (0, 1)) -> None:
    axes = row.axes[dims[0]] + row.axes[dims[1]]
    if axes not in ("HW", "WH"):
        raise NoPlace("a rotation of channels")
    method = {1: 2, 2: 3, 3: 4}.get((k if axes == "HW" else -k) % 4)
    if method is not None:
        row.transpose(method)


def plan_index(row: Any, dim: int, order: Any) -> None:
    if row.axes[dim] != "C" or order not in ((0, 1, 2), (2, 1, 0)):
        raise NoPlace("another order of the channels")
    if order == (2, 1, 0):
        row.swap_colors()


def plan_repeat(row: Any, repeats: Any) -> None:
    plan_expand(row, [-1 if count == 1 else count for count in repeats])


_operator(
    "clone.default",
    _clone,
    lambda tensor, memory_format: tensor.clone(memory_format=memory_format),
    plan_nothing,
)
_operator("_to_copy.default", _to, make_to, lambda row, dtype, _: row.cast(dtype), "torch.to")
_operator("flip.default", _flip, plan=plan_flip)
_operator("constant_pad_nd.default", _pad, plan=plan_pad)
_operator("rot90.default", _rot90, plan=plan_rot90)
_operator("repeat.default", _repeat, plan=plan_repeat)
_operator("index.Tensor", _index, make_index, plan_index)


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
        return Join(shape, step=("stacked", len(shapes), dim))
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


def make_stacked(gray: Any, count: int, dim: int) -> Any:
    """A tensor or an array of one channel, as each of many."""
    join = np.stack if isinstance(gray, np.ndarray) else torch.stack
    return join([gray] * count, dim)


def make_repeated(gray: Any, count: int, dim: int) -> Any:
    join = np.concatenate if isinstance(gray, np.ndarray) else torch.cat
    return join([gray] * count, dim)


def plan_stacked(row: Any, count: int, dim: int) -> None:
    row.unsqueeze(dim)
    plan_repeated(row, count, dim)


def plan_repeated(row: Any, count: int, dim: int) -> None:
    if (row.axes[dim], row.channels, count) != ("C", 1, 3):
        raise NoPlace("one dimension many times")
    row.convert("RGB")


add(
    Step("stacked", make_stacked, plan=plan_stacked),
    Step("repeated", make_repeated, plan=plan_repeated),
)
_noted_as_another("stack.default", stack)
_noted_as_another("cat.default", concatenate)


# Arithmetic with numbers, or with a few of them, such as one for each channel


def _arithmetic(name: str, func: Any, in_place: bool = False) -> Callable[..., Each | None]:
    """The form of a row; `func` is the operator that gives new memory."""

    def form(tensor: Any, *args: Any, **options: Any) -> Each | None:
        args = tuple(_operand(tensor, each) for each in args)
        if options or any(each is _UNKNOWN for each in args):
            return None
        dtype = _dtype_after(func, tensor.dtype, len(tensor.shape), args)
        if in_place and not torch.can_cast(dtype, tensor.dtype):
            return None  # PyTorch complains
        return Each((name, *args), dtype, in_place=in_place)

    return form


_UNKNOWN = object()


def _operand(tensor: Any, value: Any) -> Any:
    """What each picture of a tensor is computed with; `_UNKNOWN`: it cannot be said."""
    if isinstance(value, (bool, int, float, type(None))):
        return value
    if not isinstance(value, torch.Tensor) or value.numel() > MOST_NUMBERS:
        return _UNKNOWN
    if value.device.type != "cpu" or value.requires_grad or value.layout != torch.strided:
        return _UNKNOWN
    ndim, lead = len(tensor.shape), tensor.lead
    if not value.ndim:
        return value
    # one that is the same for all pictures
    shape = (1,) * (ndim - value.ndim) + tuple(value.shape)
    fits = len(shape) == ndim and all(
        own == 1 or (own == size and dim not in lead)
        for dim, (own, size) in enumerate(zip(shape, tensor.shape, strict=True))
    )
    if not fits:
        return _UNKNOWN
    return value.reshape([size for dim, size in enumerate(shape) if dim not in lead])


def _dtype_after(func: Any, dtype: torch.dtype, ndim: int, args: Any) -> torch.dtype:
    """The dtype of a result. PyTorch says it, of one number, and complains of what it would."""
    return func(_one(dtype, max(ndim, 1)), *args).dtype


@lru_cache
def _one(dtype: torch.dtype, ndim: int) -> torch.Tensor:
    return torch.ones((1,) * ndim, dtype=dtype, device="cpu")


def per_channel(row: Any, value: Any) -> Any:
    """A number, or one for each channel."""
    numbers = np.asarray(value, np.float64)
    if numbers.size == 1:
        return float(numbers.reshape(()))
    shape = (1,) * (len(row.axes) - numbers.ndim) + numbers.shape
    if [axis for axis, size in zip(row.axes, shape, strict=True) if size > 1] != ["C"]:
        raise NoPlace("arithmetic with other numbers than one for each channel")
    return numbers.ravel()


def plan_arithmetic(row: Any, dtype: torch.dtype, name: str, other: Any) -> None:
    """Each value becomes another one of this dtype, by a number or one for each channel."""
    if not dtype.is_floating_point:
        raise NoPlace("arithmetic of whole numbers")
    if name == "div" and not np.all(other):
        raise NoPlace("a division by zero")
    row.cast(dtype)
    by, plus = BY_AND_PLUS[name](other)
    row.scale_by(*(each.tolist() if isinstance(each, np.ndarray) else each for each in (by, plus)))


# what a value becomes: (factor, summand)
BY_AND_PLUS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "mul": lambda other: (other, 0.0),
    "div": lambda other: (1 / other, 0.0),
    "add": lambda other: (1.0, other),
    "sub": lambda other: (1.0, -other),
    "rsub": lambda other: (-1.0, other),
}


def _plan(name: str, func: Any, in_place: bool = False) -> Callable[..., None]:
    def plan(row: Any, other: Any) -> None:
        dtype = row.dtype
        if not in_place:
            dtype = _dtype_after(func, row.dtype, len(row.axes), (other,))
        plan_arithmetic(row, dtype, name, per_channel(row, other))

    return plan


for _name in ("add", "sub", "mul", "div"):
    _func = getattr(_ATEN, _name).Tensor
    _operator(f"{_name}.Tensor", _arithmetic(f"torch.{_name}", _func), plan=_plan(_name, _func))
    _operator(
        f"{_name}_.Tensor",
        _arithmetic(f"torch.{_name}_", _func, in_place=True),
        plan=_plan(_name, _func, in_place=True),
    )
_operator(
    "rsub.Scalar",
    _arithmetic("torch.rsub", _ATEN.rsub.Scalar),
    plan=_plan("rsub", _ATEN.rsub.Scalar),
)

# what no plan has a place for: the end of a recipe, which is carried out as noted
for _overload in (
    *(f"{name}.Scalar" for name in ("eq", "ne", "gt", "ge", "lt", "le")),
    *("neg.default", "clamp.default", "clamp_min.default", "clamp_max.default"),
    *("pow.Tensor_Scalar", "sqrt.default"),
):
    _packet, _, _last = _overload.partition(".")
    _operator(_overload, _arithmetic(f"torch.{_packet}", getattr(getattr(_ATEN, _packet), _last)))


# Changes in place, of all of a tensor or of a part of it


def _fill(tensor: Any, value: Any = 0) -> Each | None:
    if isinstance(value, torch.Tensor):
        if value.ndim or value.device.type != "cpu":
            return None
        value = value.item()
    torch.empty(1, dtype=tensor.dtype, device="cpu").fill_(
        value
    )  # which complains of what does not fit
    return Each(("torch.fill_", value), in_place=True)


def _copy(tensor: Any, source: Any, non_blocking: bool = False) -> Each | None:
    if source.device.type != "cpu" or source.requires_grad or source.layout != torch.strided:
        return None
    sides = tensor.sides
    front = source.shape[: max(source.ndim - len(sides), 0)]
    if math.prod(front) != 1 or not tensor.is_in_front or source.numel() > math.prod(sides):
        return None
    source = source.reshape(source.shape[len(front) :])
    return Each(("torch.copy_", source), in_place=True)


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
    parts = {"C": (0, row.channels), "H": (0, row.size[0]), "W": (0, row.size[1])}
    slices = all(view[0] == "torch.slice" and view[4] == 1 for view in path)
    if name not in ("torch.fill_", "torch.copy_") or row.axes != "CHW" or not slices:
        raise NoPlace(f"{name} in place, of a part")
    for _, dim, start, end, _ in path:
        first = parts[row.axes[dim]][0]
        parts[row.axes[dim]] = first + start, first + end
    plan_erase(row, parts, args[0])


def plan_erase(row: Any, parts: dict[str, tuple[int, int]], value: Any) -> None:
    """A rectangle of all channels gets a value: a number, or a tensor that is broadcast to it."""
    if parts["C"] != (0, row.channels):
        raise NoPlace("a part of the channels")
    (top, bottom), (left, right) = parts["H"], parts["W"]
    row.erase(top, left, bottom - top, right - left, value)


def make_own(value: Any) -> Any:
    """A copy, which may be changed."""
    return value.clone() if isinstance(value, torch.Tensor) else value.copy("K")


_operator("fill_.Scalar fill_.Tensor zero_.default", _fill)
_operator("copy_.default", _copy)
add(
    Step("through", make_through, plan=plan_through),
    Step("own", make_own, plan=plan_nothing),
)
