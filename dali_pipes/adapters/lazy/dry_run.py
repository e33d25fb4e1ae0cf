"""Runs a collate function without pixels, for the random numbers that it draws: `draw_as`.

A collate function that looks at pixels runs in the training process, on finished batches. The
random numbers of the worker must go on as if it had run there. So it runs there, too, on samples
that still wait: PyTorch computes shapes alone (on the device "meta"), and what would read a value
ends it. What it draws itself, such as `np.random.beta` or `torch.randperm`, is drawn.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch

# the way to see all that PyTorch does; the module is private, but there is no other one
from torch.utils._python_dispatch import TorchDispatchMode

from dali_pipes.adapters.lazy.cells import Cell, Form
from dali_pipes.adapters.lazy.looks import blame
from dali_pipes.adapters.lazy.random_numbers import read_states, restore
from dali_pipes.adapters.lazy.state import STATE, waiting
from dali_pipes.adapters.lazy.tensors import LIKE, LazyTensor, lazy_of, wrap

# random operators that draw as many numbers whatever the values are, in PyTorch's CPU kernels
_BY_SHAPE = {
    *("rand_like", "randn_like", "randint_like", "bernoulli", "bernoulli_", "uniform_", "normal"),
    *("normal_", "random_", "exponential_", "log_normal_", "geometric_", "cauchy_"),
    "native_dropout",
}
# operators whose results do not depend on the values of their tensors
# functions of a tensor that read memory without an operator
_READS = {
    *("numpy", "tolist", "data_ptr", "untyped_storage", "storage", "_typed_storage", "__array__"),
    *("__dlpack__", "__reduce_ex__"),
}
_BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def draw_as(function: Callable[[Any], Any], samples: Any) -> bool:
    """Draws the random numbers that `function(samples)` draws.

    The samples stay as they are. Whatever else the function changes, such as a counter of its own,
    it changes here, too.

    Returns:
        Whether the states of `random`, NumPy and PyTorch are as if it had run. If not, because it
        looks at values or fails, they are as they were.
    """
    states, STATE.is_dry, STATE.has_looked = read_states(), True, False
    try:
        with waiting(True):
            own = copy.deepcopy(samples)
            with _Reads() as reads, _Operators(reads):
                function(own)
        # the program may have caught the error
        is_drawn = not STATE.has_looked
    except Exception:
        is_drawn = False
    finally:
        STATE.is_dry = False
    if not is_drawn:
        restore(states)
    return is_drawn


class _Reads(torch.overrides.TorchFunctionMode):
    """Ends what reads the memory of tensors that were made from pixels.

    Attributes:
        unknown: memory whose values are not known, by its address.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unknown: dict[int, torch.UntypedStorage] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.unknown and getattr(func, "__name__", "") in _READS and self.is_unknown(args[0]):
            blame()
        return func(*args, **(kwargs or {}))

    def is_unknown(self, value: Any) -> bool:
        """Whether it is a tensor whose values are not known."""
        if not isinstance(value, torch.Tensor):
            return False
        lazy = lazy_of(value)
        return lazy.waits if lazy else bool(self.unknown) and _address(value) in self.unknown

    def forget(self, tensor: torch.Tensor) -> None:
        """Its values are not known any more, nor those of others in the same memory."""
        if lazy_of(tensor) is None and (address := _address(tensor)):
            self.unknown[address] = tensor.untyped_storage()


def _address(tensor: torch.Tensor) -> int:
    """Where its memory is; 0: it has none."""
    with suppress(RuntimeError, NotImplementedError):
        return tensor.untyped_storage().data_ptr()
    return 0


class _Operators(TorchDispatchMode):
    """Has operators on tensors whose values are not known give others of this kind.

    Attributes:
        known: what operators gave, on the device "meta", and of which tensors.
    """

    def __init__(self, reads: _Reads):
        super().__init__()
        self.reads = reads
        self.known: dict[Any, tuple[Any, list[torch.Tensor]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [*_tensors((args, kwargs))]
        if not any(map(self.reads.is_unknown, tensors)):
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in LIKE:
            return _run(func, args, kwargs, _new_like)
        if _is_by_value(func, args) or any(each.device.type != "cpu" for each in tensors):
            blame()
        if torch.Tag.nondeterministic_seeded in func.tags:
            if name not in _BY_SHAPE or "out" in kwargs:
                blame()
            _run(func, args, kwargs, _new_like)
        return self._by_shape(func, args, kwargs)

    def _by_shape(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What it gives, of shapes alone. PyTorch takes up to 200 µs to find that out."""
        own: dict[int, tuple[int, torch.Tensor]] = {}
        key = func, _code(list(kwargs.items()), own), _code(args, own)
        if key not in self.known:
            metas: list[torch.Tensor] = []

            def new_meta(tensor: torch.Tensor) -> torch.Tensor:
                like = torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
                )
                metas.append(like)
                return like

            self.known[key] = _run(func, args, kwargs, new_meta), metas
        result, metas = self.known[key]
        tensors = [tensor for _, tensor in own.values()]

        def of(meta: torch.Tensor) -> torch.Tensor:
            for tensor, like in zip(tensors, metas, strict=True):
                if like is meta:  # it is changed in place
                    if tensor.shape != like.shape:
                        blame()
                    self.reads.forget(tensor)
                    return tensor
            return _unknown(meta)

        return _map(result, of)


def _code(value: Any, own: dict[int, tuple[int, torch.Tensor]]) -> Any:
    """What shapes of results depend on. Tensors are numbered in `own`."""
    if isinstance(value, torch.Tensor):
        number, _ = own.setdefault(id(value), (len(own), value))
        return number, value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(_code(each, own) for each in value)
    return float if isinstance(value, float) else repr(value)


def _is_by_value(func: Any, args: Any) -> bool:
    """Whether shapes depend on values: not those of an index by numbers."""
    if func.overloadpacket.__name__ == "index":
        return any(each.dtype in (torch.bool, torch.uint8) for each in _tensors(args[1]))
    return bool(_BY_VALUE & set(func.tags))


def _unknown(like: torch.Tensor) -> torch.Tensor:
    """A tensor like it, whose values are not known."""
    form = Form(tuple(like.shape), like.stride(), like.dtype)
    return wrap(LazyTensor(Cell([], form), form, int(like.storage_offset())))


def _new_like(tensor: torch.Tensor) -> torch.Tensor:
    """A true tensor like it, of numbers that are right as probabilities, too."""
    new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return new.fill_(0.5) if new.is_floating_point() else new.zero_()


def _run(func: Any, args: Any, kwargs: Any, instead: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Calls it with other tensors, where these are."""
    known: dict[int, torch.Tensor] = {}

    def of(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = instead(tensor)
        return known[id(tensor)]

    options = {name: _map(each, of) for name, each in kwargs.items()}
    if options.get("device") is not None and any(each.is_meta for each in known.values()):
        options["device"] = torch.device("meta")
    return func(*_map(args, of), **options)


def _map(value: Any, instead: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same with other tensors."""
    if isinstance(value, (list, tuple)):
        return type(value)([_map(each, instead) for each in value])
    return instead(value) if isinstance(value, torch.Tensor) else value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        parts: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for each in parts:
            yield from _tensors(each)
