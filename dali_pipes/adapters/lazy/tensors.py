"""Tensors of pictures that are made when they are looked at.

A tensor that waits is a `torch.Tensor` (or a `tv_tensors.Image`, …) and of no other class, but it
has no memory: PyTorch's dispatcher calls `dispatch` for everything that is done to it. What is in
the table (steps/torch_ops.py) is noted. For all else the true tensor is made, and PyTorch does it
to that. The few functions that read memory without the dispatcher are in the `__dict__` of such a
tensor.

    tensor ──▶ LazyTensor: what it looks like, its views ──▶ cell: recipes, or the true tensor
"""

import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import get_worker_info

from dali_pipes.adapters.lazy.cells import (
    Cell,
    CellView,
    Form,
    Ints,
    Waiting,
    contiguous,
    dense,
    rows_of,
)
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.state import STATE, waits
from dali_pipes.adapters.lazy.steps.common import Each
from dali_pipes.adapters.lazy.steps.step import replace
from dali_pipes.adapters.lazy.steps.torch_ops import OPERATORS


class LazyTensor(Waiting):
    """What is known of a tensor that waits.

    Args:
        offset: where in its memory it begins.

    Attributes:
        kind: the class of the tensor.
    """

    kind: type[torch.Tensor] = torch.Tensor
    _tensor: Callable[[], torch.Tensor | None]

    def __init__(self, cell: Cell, form: Form, offset: int = 0, path: tuple[CellView, ...] = ()):
        self.cell, self.form, self.offset, self.path = cell, form, offset, path

    @property
    def shape(self) -> Ints:
        return self.form.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.form.dtype

    @property
    def is_image(self) -> bool:
        """Whether its last three dimensions are a picture, and the others number pictures."""
        return self.form.is_in_front and len(self.form.lead) + 3 == len(self.form.shape)

    def then(
        self, sides: Ints, dtype: torch.dtype, name: str, /, *args: Any, **options: Any
    ) -> torch.Tensor:
        """New memory: every picture after one step more.

        Args:
            sides: the shape of a picture then.
        """
        shape, strides, _, lead = self.form
        if tuple(sides) == self.sides:
            form = Form(shape, kept(shape, strides), dtype, lead)
        else:
            new = list(sides)
            for dim in sorted(lead):
                new.insert(dim, shape[dim])
            form = Form(tuple(new), contiguous(tuple(new)), dtype, lead)
        return new_tensors(self.rows_after(name, *args, **options), form)

    # what reads memory, or leaves it as it is, without PyTorch's dispatcher

    @property
    def requires_grad(self) -> bool:
        """Whether the tensor does; not if it is gone, as in `x[0].numpy()` when that runs."""
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
        return wrap(LazyTensor(self.cell, self.form, self.offset, self.path), kind)

    def deepcopy(self, memo: dict[int, Any]) -> torch.Tensor:
        if self.waits:
            made = new_tensors(self.copied_rows(), self.form, True, self.kind)
        else:
            made = self.value().detach().clone().as_subclass(self.kind)
        return memo.setdefault(id(self._tensor()), made.requires_grad_(self.requires_grad))

    def reduce_ex(self, protocol: Any) -> Any:
        """Pickles it as it is, if it is sent; others get the true one."""
        if not self.waits or not STATE.sends:
            return self.true().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]
        seen = self.cell, self.form, self.offset, self.path
        return _rebuild, (self.kind, *seen, self.requires_grad)


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
    shape, strides, dtype, _ = lazy.form
    # private, but PyTorch's notes on extending it describe this; there is no public way
    tensor: Any = torch.Tensor._make_wrapper_subclass(
        _NoMemory, shape, strides, lazy.offset, dtype=dtype, device=_CPU
    )
    # private: with it C++ code that reads memory gets an error, and no null pointer
    torch._C._set_throw_on_mutable_data_ptr(tensor)
    try:
        tensor.__class__ = kind
    except TypeError:  # a class with slots of its own
        return lazy.value().as_subclass(kind)
    _give(lazy, tensor)
    return tensor


_CPU = torch.device("cpu")


def _give(lazy: LazyTensor, tensor: torch.Tensor) -> None:
    """Has it stand behind a tensor.

    Python finds in the tensor what it has here before the functions of its class. What Python looks
    for in the class alone, such as `__setitem__`, comes to `dispatch`.
    """
    lazy.kind, lazy._tensor = type(tensor), weakref.ref(tensor)
    tensor.__dict__.update(
        _lazy=lazy,
        __torch_dispatch__=dispatch,
        numpy=lazy.numpy,
        tolist=lazy.tolist,
        data_ptr=lazy.data_ptr,
        untyped_storage=lazy.untyped_storage,
        pin_memory=lazy.pin_memory,
        as_subclass=lazy.as_subclass,
        __dlpack__=lazy.dlpack,
        __deepcopy__=lazy.deepcopy,
        __reduce_ex__=lazy.reduce_ex,
    )


def lazy_of(value: Any) -> LazyTensor | None:
    """What is known of a tensor that waits, or did so; None: it is no such tensor."""
    return value.__dict__.get("_lazy") if isinstance(value, torch.Tensor) else None


def waiting_tensor(value: Any) -> LazyTensor | None:
    """The same of one that still waits, where tensors may wait: a step of it may be noted."""
    lazy = lazy_of(value)
    may_be_noted = lazy is not None and lazy.waits and waits("tensor") and not _has_gradient(value)
    return lazy if may_be_noted else None


def _has_gradient(tensor: torch.Tensor) -> bool:
    """Whether PyTorch keeps what is done to it, which it can of true tensors only."""
    return tensor.requires_grad and torch.is_grad_enabled()


def new_tensor(
    recipe: Recipe, shape: Ints, dtype: torch.dtype, strides: Ints | None = None
) -> torch.Tensor:
    """A tensor of one picture.

    Args:
        strides: None: those of contiguous memory.
    """
    return new_tensors([recipe], Form(shape, strides or contiguous(shape), dtype))


def new_tensors(
    rows: list[Any],
    form: Form,
    is_copy: bool = False,
    kind: type[torch.Tensor] = torch.Tensor,
) -> torch.Tensor:
    """A tensor of many pictures, in new memory.

    Args:
        rows, is_copy: as of `Cell`.
    """
    return wrap(LazyTensor(Cell(rows, form, is_copy), form), kind)


def _rebuild(
    kind: type[torch.Tensor],
    cell: Cell,
    form: Form,
    offset: int,
    path: tuple[CellView, ...],
    requires_grad: bool,
) -> torch.Tensor:
    cell.arrived += 1
    return wrap(LazyTensor(cell, form, offset, path), kind).requires_grad_(requires_grad)


# What PyTorch does with them


def dispatch(func: Any, types: Any, args: Any = (), options: Any = None) -> Any:
    """What PyTorch calls for each operator on a tensor that waits."""
    options = options or {}
    if func in OPERATORS and waits("tensor"):
        noted = _note(func, args, options)
        if noted is not None:
            return noted
    if func.overloadpacket.__name__ in LIKE and args and (lazy := lazy_of(args[0])):
        like = torch.empty_strided(lazy.shape, lazy.form.strides, dtype=lazy.dtype)
        return func(like, *args[1:], **options)
    return _do(func, args, options)


# operators that ask for the form of a tensor alone
LIKE = {
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
    *("randint_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full"),
}


def _do(func: Any, args: Any, options: Any) -> Any:
    """Does it to the true tensors."""
    taken: dict[int, tuple[LazyTensor, torch.Tensor]] = {}
    true_options = {name: _true(value, taken) for name, value in options.items()}
    result = func(*_true(args, taken), **true_options)
    for lazy, _ in taken.values():
        if tuple(lazy.value().shape) != lazy.shape:
            raise NotImplementedError(f"{func} gives a tensor that waited another shape in place")
    # who changes a tensor in place, or gives one for the result, gets it back
    return taken[id(result)][1] if id(result) in taken else result


def _true(value: Any, taken: dict[int, tuple[LazyTensor, torch.Tensor]]) -> Any:
    """The same with true tensors, of which `taken` is told."""
    if isinstance(value, (list, tuple)):
        return type(value)([_true(each, taken) for each in value])
    lazy = lazy_of(value)
    if lazy is None:
        return value
    made = lazy.value()
    taken[id(made)] = lazy, value
    return made


def _note(func: Any, args: Any, options: Any) -> Any:
    """What the program gets if this is noted; None: it cannot be."""
    first, *rest = args
    if isinstance(first, (list, tuple)):
        return _join(func, first, rest, options)
    lazy = lazy_of(first)
    if lazy is None or not lazy.waits or _has_gradient(first):
        return None
    # the end of `x[1:] *= 2`: what was changed is put where it is
    if func is _COPY and (source := lazy_of(rest[0])) and source.sees_as(lazy):
        return first
    # a recipe has one source, so a step on two things that wait is none
    if any(map(_is_lazy, (*rest, *options.values()))):
        return None

    found = _find(func, lazy.form, rest, options)
    if found is None:
        return None
    done, looks = found
    if isinstance(done, CellView):
        return _see(lazy, done, looks[0])
    if isinstance(done, list):
        return [_see(lazy, view, look) for view, look in zip(done, looks, strict=True)]
    if done.in_place:
        return first if lazy.change(*done.step) else None
    if done.step is None:
        return new_tensors(lazy.copied_rows(), looks[0].form, is_copy=True)
    return new_tensors(lazy.rows_after(*done.step), looks[0].form)


_COPY = torch.ops.aten.copy_.default


def _is_lazy(value: Any) -> bool:
    if type(value) is list or type(value) is tuple:
        return any(map(_is_lazy, value))
    return lazy_of(value) is not None


def _see(lazy: LazyTensor, view: CellView, look: "_Look") -> torch.Tensor:
    """The same memory."""
    path = (*lazy.path, view) if view.step else lazy.path
    return wrap(LazyTensor(lazy.cell, look.form, lazy.offset + look.offset, path))


class _Look(NamedTuple):
    """What a result looks like.

    Attributes:
        offset: where it begins, from where the tensor does.
    """

    form: Form
    offset: int


def _find(func: Any, form: Form, args: list[Any], options: Any) -> Any:
    """What an operator does to a tensor, and what the results look like; None: it is not noted."""
    # from an equal, such as -0.0 of 0.0, another step may come
    if any(isinstance(each, (float, complex, torch.Tensor)) for each in args):
        return _find_now(func, form, *args, **options)
    plain = [tuple(each) if type(each) is list else each for each in args]
    try:
        return _find_once(func, form, *plain, **options)
    except TypeError:  # a list with tensors in it
        return _find_now(func, form, *args, **options)


def _find_now(func: Any, form: Form, *args: Any, **options: Any) -> Any:
    done = OPERATORS[func](form, *args, **options)
    if done is None:
        return None
    if isinstance(done, Each) and (done.in_place or done.like is not None):
        shape, strides, _, lead = form
        return done, [_Look(Form(shape, kept(shape, strides), done.like, lead), 0)]

    options.pop("device", None)  # the CPU, and not that of what has no memory
    result = func(_meta(form), *args, **options)
    leads = [view.lead for view in done] if isinstance(done, list) else [form.lead]
    if isinstance(done, CellView):
        leads = [done.lead]
    results = result if isinstance(result, (list, tuple)) else [result]
    looks = [_look(each, lead) for each, lead in zip(results, leads, strict=True)]
    if isinstance(done, Each) and done.step is None and not form.lead:
        # a copy of a single picture, which may lie otherwise
        done = done._replace(step=done.otherwise if looks[0].form != form else None)
    return done, looks


_find_once = lru_cache(maxsize=4096, typed=True)(_find_now)  # PyTorch takes 4 to 60 µs


def _look(result: torch.Tensor, lead: Ints) -> _Look:
    form = Form(tuple(result.shape), result.stride(), result.dtype, lead)
    return _Look(form, int(result.storage_offset()))


def _meta(form: Form) -> torch.Tensor:
    """A tensor without memory, of which PyTorch says what it makes of it."""
    return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device="meta")


@lru_cache(maxsize=4096)
def kept(shape: Ints, strides: Ints) -> Ints:
    """The strides of a result whose dimensions are in the same order.

    As `infer_dense_strides` (aten/src/ATen/ExpandUtils.cpp) and TensorIterator have it: a stride of
    0 says nothing, so that dimension stays where it is.
    """
    order = list(range(len(shape)))[::-1]  # the fastest one first
    for last in range(1, len(order)):
        at = last
        for before in range(last - 1, -1, -1):
            one, other = order[before], order[at]
            if 0 in (strides[one], strides[other]):
                continue
            if strides[one] < strides[other]:
                break
            if strides[one] > strides[other] or shape[one] > shape[other]:
                order[before], order[at] = other, one
                at = before
    return dense(shape, tuple(order.index(dim) for dim in range(len(shape))))


def _join(func: Any, tensors: Any, rest: Any, options: Any) -> Any:
    """`stack` and `cat`, of tensors that wait and others."""
    lazies = [lazy_of(each) for each in tensors]
    waiting = [lazy for lazy in lazies if lazy is not None and lazy.waits]
    others = [each for each, lazy in zip(tensors, lazies, strict=True) if lazy is None]
    if not waiting or options or any(each.device.type != "cpu" for each in others):
        return None
    if any(map(_has_gradient, tensors)):
        return None
    _, _, dtype, lead = waiting[0].form
    forms = [
        Form(tuple(each.shape), each.stride(), each.dtype, lead) if lazy is None else lazy.form
        for each, lazy in zip(tensors, lazies, strict=True)
    ]
    if any(form.dtype != dtype or form.lead != lead for form in {*forms}):
        return None

    is_one = len({*map(id, tensors)}) == 1
    done = OPERATORS[func](lead, [each.shape for each in forms], is_one, *rest)
    if done is None:
        return None
    strides = dense(done.shape, _strides_joined(func, tuple({*forms}), *rest))
    form = Form(done.shape, strides, dtype, done.lead)
    if done.step is not None:
        return new_tensors(waiting[0].rows_after(*done.step), form)
    parts = zip(tensors, lazies, strict=True)
    rows = [row for each, lazy in parts for row in rows_of(each, lazy, lead)]
    return new_tensors(rows, form, is_copy=True)


@lru_cache(maxsize=256)
def _strides_joined(func: Any, forms: tuple[Form, ...], *rest: Any) -> Ints:
    """Strides of a result, of two pictures at most. Those that PyTorch says of tensors on the
    device "meta" are others than those of its kernels (2.10).
    """
    parts = []
    for shape, strides, dtype, lead in forms:
        few = [min(size, 2) if dim in lead else size for dim, size in enumerate(shape)]
        parts.append(torch.empty_strided(few, strides, dtype=dtype))
    return func(parts if len(parts) > 1 else parts * 2, *rest).stride()


# Where PyTorch's own Python code reads memory


def _collate(original: Callable[..., Any], batch: Any, **options: Any) -> torch.Tensor:
    """`collate_tensor_fn`, which in a worker stacks into shared memory."""
    if any(waiting_tensor(each) for each in batch):
        stacked = torch.stack(batch)
        return stacked.contiguous() if get_worker_info() else stacked
    pairs = [(each, lazy_of(each)) for each in batch]
    return original([lazy.true() if lazy else each for each, lazy in pairs], **options)


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
        _give(LazyTensor(lazy.cell, lazy.form, lazy.offset, lazy.path), tensor)


_DATA: Any = vars(torch._C.TensorBase)["data"]
replace("torch", "Tensor.data", property(_DATA.__get__, _set_data))
replace("torch.utils.data._utils.collate", "collate_tensor_fn", _collate)
replace("torch.multiprocessing.reductions", "reduce_tensor", _reduce)
