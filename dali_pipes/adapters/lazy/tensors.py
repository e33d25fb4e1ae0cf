"""Tensors of pictures that are made when they are looked at.

A tensor that waits is a `torch.Tensor` (or a `tv_tensors.Image`, …) and of no other class, but it has
no memory: PyTorch's dispatcher calls `dispatch` for everything that is done to it. What is in the
table (steps/torch_ops.py) is noted; for all else the true tensor is made, and PyTorch does it to that.
The few functions that read memory without the dispatcher are in the `__dict__` of such a tensor.

    tensor ──▶ LazyTensor: its announced form, its path ──▶ cell: recipes, or the true tensor
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from dali_pipes.adapters.lazy.cells import Cell, Form, Ints, View, Waiting, dense, sides_of
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.state import STATE, waits
from dali_pipes.adapters.lazy.steps.step import Step, replace
from dali_pipes.adapters.lazy.steps.torch_ops import OPERATORS, Each, Join


class LazyTensor(Waiting):
    """What is known of a tensor that waits.

    Args:
        like: a tensor of the same shape, dtype and strides on the device "meta", on which PyTorch
            itself finds out what a view of it looks like.

    Attributes:
        kind: the class of the tensor.
    """

    def __init__(
        self, cell: Cell, like: torch.Tensor, lead: Ints = (), path: tuple[View, ...] = ()
    ):
        self.cell, self.like, self.lead, self.path = cell, like, lead, path
        self.dtype = like.dtype
        self.kind: type[torch.Tensor] = torch.Tensor
        self._tensor: Callable[[], torch.Tensor | None] = lambda: None

    @property
    def form(self) -> tuple[Ints, Any, Ints]:
        return tuple(self.like.shape), self.dtype, self.like.stride()

    @property
    def shape(self) -> torch.Size:
        return self.like.shape

    @property
    def is_image(self) -> bool:
        """Whether its last three dimensions are a picture, those before them number pictures."""
        return len(self.lead) + 3 == self.like.ndim and self.lead == tuple(range(len(self.lead)))

    def then(
        self, sides: Ints, dtype: torch.dtype, name: str, /, *args: Any, **options: Any
    ) -> torch.Tensor:
        """New memory: every picture after one step more.

        Args:
            sides: the shape of a picture then.
        """
        if tuple(sides) == self.sides:
            like = _like(self.shape, _kept(self.like), dtype)
        else:
            shape = list(sides)
            for dim in sorted(self.lead):
                shape.insert(dim, self.shape[dim])
            like = _like(shape, _contiguous(shape), dtype)
        return new_tensors(self.rows_after(name, *args, **options), like, self.lead)

    def see(self, view: View, like: torch.Tensor) -> torch.Tensor:
        """The same memory."""
        path = (*self.path, view) if view.step else self.path
        return wrap(LazyTensor(self.cell, like, view.lead, path))

    # what reads memory, or leaves it as it is, without PyTorch's dispatcher

    @property
    def requires_grad(self) -> bool:
        """Whether the tensor does. One that is gone, as in `x[0].numpy()` when that runs, does not."""
        tensor = self._tensor()
        return tensor is not None and tensor.requires_grad

    def true(self) -> torch.Tensor:
        """What a program without this would have, of the same class."""
        value = self.value()
        if self.requires_grad and not value.requires_grad:
            value = value.detach().requires_grad_()
        return value if self.kind is torch.Tensor else value.as_subclass(self.kind)

    def numpy(self, *, force: bool = False) -> np.ndarray:
        return self.true().numpy(force=force)

    def tolist(self) -> Any:
        return self.value().tolist()

    def data_ptr(self) -> int:
        return self.value().data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.value().untyped_storage()

    def dlpack(self, **options: Any) -> Any:
        return self.true().__dlpack__(**options)

    def pin_memory(self, device: Any = None) -> torch.Tensor:
        if not self.waits:
            return self.true().pin_memory(device)
        tensor = self._tensor()  # which is pinned when it is made
        return self.as_subclass(self.kind) if tensor is None else tensor

    def as_subclass(self, kind: type[torch.Tensor]) -> torch.Tensor:
        if not self.waits:
            return self.value().as_subclass(kind)
        return wrap(LazyTensor(self.cell, self.like, self.lead, self.path), kind)

    def deepcopy(self, memo: dict[int, Any]) -> torch.Tensor:
        if self.waits:
            made = new_tensors(self.copied_rows(), self.like, self.lead, self.kind)
        else:
            made = self.value().detach().clone().as_subclass(self.kind)
        return memo.setdefault(id(self._tensor()), made.requires_grad_(self.requires_grad))

    def reduce_ex(self, protocol: Any) -> Any:
        """Pickles it as it is, if it is sent; others get the true one."""
        if not self.waits or not STATE.sends:
            return self.true().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]
        seen = self.cell, self.form, self.lead, self.path
        return _rebuild, (self.kind, *seen, self.requires_grad)


# Of a tensor that waits. Python finds these before the functions of its class. What it looks for in
# the class alone, such as `__setitem__`, comes to `dispatch`.
_OWN = {
    "numpy": "numpy",
    "tolist": "tolist",
    "data_ptr": "data_ptr",
    "untyped_storage": "untyped_storage",
    "__dlpack__": "dlpack",
    "pin_memory": "pin_memory",
    "as_subclass": "as_subclass",
    "__deepcopy__": "deepcopy",
    "__reduce_ex__": "reduce_ex",
}


class _NoMemory(torch.Tensor):
    """The class of a tensor that waits, until it gets the one that it is to have.

    PyTorch gives the key by which the dispatcher finds a tensor only to a subclass that has a
    `__torch_dispatch__`. To call it, it looks into the tensor, whatever its class by then
    (`handle_torch_function_no_python_arg_parser` in torch/csrc/utils/python_arg_parser.cpp; tried
    with PyTorch 2.10 and 2.15). So `type(x) is torch.Tensor` is true, by which programs decide.
    """

    @classmethod
    def __torch_dispatch__(cls, *args: Any) -> Any:
        raise NotImplementedError


def wrap(lazy: LazyTensor, kind: type[torch.Tensor] = torch.Tensor) -> torch.Tensor:
    """The tensor that the program gets."""
    like = lazy.like
    # private, but PyTorch's notes on extending it describe this; there is no public way
    at = like.storage_offset()
    tensor: Any = torch.Tensor._make_wrapper_subclass(
        _NoMemory, like.shape, like.stride(), at, dtype=like.dtype, device=torch.device("cpu")
    )
    # private: with it C++ code that reads memory gets an error, and no null pointer
    torch._C._set_throw_on_mutable_data_ptr(tensor)
    try:
        tensor.__class__ = kind
    except TypeError:  # a class with slots of its own
        return lazy.value().as_subclass(kind)
    _give(lazy, tensor)
    return tensor


def _give(lazy: LazyTensor, tensor: torch.Tensor) -> None:
    """Has it stand behind a tensor."""
    lazy.kind, lazy._tensor = type(tensor), weakref.ref(tensor)
    own = tensor.__dict__
    own["_lazy"], own["__torch_dispatch__"] = lazy, dispatch
    for name, function in _OWN.items():
        own[name] = getattr(lazy, function)


def lazy_of(value: Any) -> LazyTensor | None:
    """What is known of a tensor that waits, or did so; None: it is no such tensor."""
    return value.__dict__.get("_lazy") if isinstance(value, torch.Tensor) else None


def waiting_tensor(value: Any) -> LazyTensor | None:
    """The same of one that still waits, where tensors may wait: a step of it may be noted."""
    lazy = lazy_of(value)
    return lazy if lazy is not None and lazy.waits and waits("tensor") else None


def new_tensor(
    recipe: Recipe, shape: Ints, dtype: torch.dtype, strides: Ints | None = None
) -> torch.Tensor:
    """A tensor of one picture.

    Args:
        strides: None: those of contiguous memory.
    """
    return new_tensors([recipe], _like(shape, strides or _contiguous(shape), dtype))


def new_tensors(
    rows: list[Any], like: torch.Tensor, lead: Ints = (), kind: type[torch.Tensor] = torch.Tensor
) -> torch.Tensor:
    """A tensor of many pictures, in new memory.

    Args:
        rows: their recipes.
        like, lead: as of `LazyTensor`.
    """
    cell = Cell(rows, Form(tuple(like.shape), like.stride(), lead))
    return wrap(LazyTensor(cell, like, lead), kind)


def _like(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device="meta")


def _contiguous(shape: Sequence[int]) -> Ints:
    return dense(shape, range(len(shape))[::-1])


def _kept(like: torch.Tensor) -> Ints:
    """The strides of a result whose dimensions are in the same order.

    As `infer_dense_strides` in aten/src/ATen/ExpandUtils.cpp and TensorIterator have it: a stride of
    0 says nothing, so that dimension stays where it is.
    """
    shape, strides = like.shape, like.stride()
    if like.is_contiguous():
        return strides
    order = list(range(len(shape)))[::-1]  # the fastest one first
    for last in range(1, len(order)):
        at = last
        for before in range(last - 1, -1, -1):
            one, other = order[before], order[at]
            if 0 in (strides[one], strides[other]):
                continue
            if (strides[one], shape[one]) <= (strides[other], shape[other]):
                if strides[one] != strides[other]:
                    break
                continue
            order[before], order[at] = other, one
            at = before
    return dense(shape, [order.index(dim) for dim in range(len(shape))])


def _rebuild(
    kind: type[torch.Tensor],
    cell: Cell,
    form: tuple[Ints, torch.dtype, Ints],
    lead: Ints,
    path: tuple[View, ...],
    requires_grad: bool,
) -> torch.Tensor:
    shape, dtype, strides = form
    cell.arrived += 1
    tensor = wrap(LazyTensor(cell, _like(shape, strides, dtype), lead, path), kind)
    return tensor.requires_grad_(requires_grad)


# What PyTorch does with them


def dispatch(func: Any, types: Any, args: Any = (), options: Any = None) -> Any:
    """What PyTorch calls for each operator on a tensor that waits."""
    options = options or {}
    step = OPERATORS.get(func)
    if step is not None and waits("tensor"):
        noted = _note(step, func, args, options)
        if noted is not None:
            return noted
    return _do(func, args, options)


def _do(func: Any, args: Any, options: Any) -> Any:
    """Does it to the true tensors."""
    taken: dict[int, tuple[LazyTensor, torch.Tensor]] = {}

    def true(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)([true(each) for each in value])
        lazy = lazy_of(value)
        if lazy is None:
            return value
        made = lazy.value()
        taken[id(made)] = lazy, value
        return made

    result = func(*true(args), **{name: true(value) for name, value in options.items()})
    for lazy, _ in taken.values():
        if lazy.value().shape != lazy.shape:
            raise NotImplementedError(f"{func} gives a tensor that waited another shape in place")
    # who changes a tensor in place, or gives one for the result, gets it back
    return taken[id(result)][1] if id(result) in taken else result


def _note(step: Step, func: Any, args: Any, options: Any) -> Any:
    """What the program gets if this is noted; None: it cannot be."""
    first, rest = args[0], args[1:]
    if isinstance(first, (list, tuple)):
        return _join(step, func, first, rest, options)
    lazy = lazy_of(first)
    # a recipe has one source, so a step on two things that wait is none
    if lazy is None or not lazy.waits or any(map(_is_lazy, (*rest, *options.values()))):
        return None

    found = step.form(lazy, *rest, **options)  # type: ignore[misc]
    if isinstance(found, View):
        return lazy.see(found, func(lazy.like, *rest, **options))
    if isinstance(found, list):
        likes = func(lazy.like, *rest, **options)
        return [lazy.see(view, like) for view, like in zip(found, likes, strict=True)]
    if not isinstance(found, Each):
        return None
    if found.in_place:
        return first if lazy.change(*found.step) else None  # type: ignore[misc]

    if found.like is None:
        options.pop("device", None)  # the CPU, and not that of what has no memory
        like = func(lazy.like, *rest, **options)
    else:
        like = _like(lazy.shape, _kept(lazy.like), found.like)
    each = found.step
    if each is None and not lazy.lead and like.stride() != lazy.like.stride():
        each = found.otherwise
    rows = lazy.rows_after(*each) if each else lazy.copied_rows()
    return new_tensors(rows, like, lazy.lead)


def _is_lazy(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_lazy, value))
    return lazy_of(value) is not None


def _join(step: Step, func: Any, tensors: Any, rest: Any, options: Any) -> Any:
    """`stack` and `cat`, of tensors that wait and others."""
    waiting = [lazy for each in tensors if (lazy := waiting_tensor(each)) is not None]
    if not waiting or options:
        return None
    dtype, lead, shapes = waiting[0].dtype, waiting[0].lead, [tuple(each.shape) for each in tensors]
    if any(each.lead != lead for each in waiting):
        return None
    if any(each.dtype != dtype or each.device.type != "cpu" for each in tensors):
        return None

    same = all(each is tensors[0] for each in tensors)
    found = step.form(lead, shapes, same, *rest)  # type: ignore[misc]
    if isinstance(found, Each):
        like = func([_like_of(each) for each in tensors], *rest)
        return new_tensors(waiting[0].rows_after(*found.step), like)  # type: ignore[misc]
    if not isinstance(found, Join):
        return None
    rows = [row for each in tensors for row in _rows_of(each, lead)]
    return new_tensors(rows, _like_joined(found, func, tensors, rest), found.lead)


def _rows_of(tensor: torch.Tensor, lead: Ints) -> list[Any]:
    """The pictures of any tensor, which whoever gets them may change."""
    lazy = waiting_tensor(tensor)
    if lazy is not None:
        return lazy.copied_rows()
    lazy = lazy_of(tensor)
    true = (lazy.value() if lazy else tensor).detach().as_subclass(torch.Tensor)
    sides = sides_of(range(true.ndim), lead)
    return list(
        true.permute(*lead, *sides).clone().reshape(-1, *[true.shape[dim] for dim in sides])
    )


def _like_joined(found: Join, func: Any, tensors: Any, rest: Any) -> torch.Tensor:
    likes = [_like_of(each) for each in tensors]
    if len({(each.shape, each.stride()) for each in likes}) > 1 or len(likes) < 3:
        return func(likes, *rest)
    # PyTorch takes 20 µs for each of them; what it says of two is true of more
    few = func(likes[:2], *rest)
    return _like(found.shape, dense(found.shape, few.stride()), few.dtype)


def _like_of(tensor: torch.Tensor) -> torch.Tensor:
    lazy = lazy_of(tensor)
    return _like(tensor.shape, tensor.stride(), tensor.dtype) if lazy is None else lazy.like


# Where PyTorch's own Python code reads memory


def _collate(original: Callable[..., Any], batch: Any, **options: Any) -> torch.Tensor:
    """`collate_tensor_fn`, which stacks into shared memory in a worker."""
    if any(waiting_tensor(each) for each in batch):
        stacked = torch.stack(batch)
        return stacked.contiguous() if get_worker_info() else stacked
    lazies = [lazy_of(each) for each in batch]
    return original(
        [lazy.true() if lazy else each for lazy, each in zip(lazies, batch, strict=True)], **options
    )


def _reduce(original: Callable[..., Any], tensor: torch.Tensor) -> Any:
    """`reduce_tensor`, by which a worker sends tensors."""
    lazy = lazy_of(tensor)
    if lazy is None:
        return original(tensor)
    return lazy.reduce_ex(4) if lazy.waits and STATE.sends else original(lazy.true())


def _set_data(tensor: torch.Tensor, value: Any) -> None:
    """`tensor.data = value`, which gives it the memory of another one."""
    _DATA.__set__(tensor, value)
    lazy = lazy_of(value)
    if lazy is not None:
        _give(LazyTensor(lazy.cell, lazy.like, lazy.lead, lazy.path), tensor)


_DATA = vars(torch._C.TensorBase)["data"]
replace("torch", "Tensor.data", property(_DATA.__get__, _set_data))
replace("torch.utils.data._utils.collate", "collate_tensor_fn", _collate)
replace("torch.multiprocessing.reductions", "reduce_tensor", _reduce)
