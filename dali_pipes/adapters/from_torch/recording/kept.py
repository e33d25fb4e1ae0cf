"""What a data set may change outside of itself stays as it was while the data set is run.

`globals_kept` restores what the user's modules hold: globals, and what belongs to their classes and
functions.
"""

import functools
import gc
import operator
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from io import IOBase
from types import (
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch

from dali_pipes.adapters.from_torch.recording.objects import (
    ATOMS,
    CONTAINERS,
    LARGEST_ARRAY,
    SHORT,
    attributes_of,
    content,
    is_a,
    is_array,
    is_own,
    is_walked,
    referent,
    slot_members,
    slots_of,
)
from dali_pipes.adapters.from_torch.recording.random_states import (
    generator_state,
    set_generator_state,
)

_TOTAL = 512 << 20  # bytes of all arrays of which a copy is kept
_MOST = 20_000  # objects and containers that are looked into
_MOST_ROWS = 2_000_000  # rows of long tables that are kept


@contextmanager
def globals_kept(dataset: Any) -> Iterator["Kept"]:
    """Restores what a data set may have changed outside of itself: globals of the user's modules,
    attributes of their classes, variables and defaults of their functions, and random generators.
    """
    kept = Kept.of(dataset, has_rows=True)
    try:
        yield kept
    finally:
        kept.restore()


class Kept:
    """How things were that a data set may change, to be restored and compared.

    Args:
        has_values: whether arrays and containers are copied, which finding generators needs not.
        has_rows: whether rows of long tables are copied, which only `restore` gives back.

    Attributes:
        has_iterators: whether there are some, such as `itertools.count`, whose state is not known.
        held: the containers, arrays and objects that `restore` gives back, by their identity.
    """

    def __init__(self, has_values: bool = True, has_rows: bool = False) -> None:
        self.has_iterators = False
        self.held: dict[int, Any] = {}
        self._has_values, self._has_rows = has_values, has_rows
        self._room = _TOTAL
        self._spaces: list[tuple[Any, dict[str, Any]]] = []
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._slots: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._arrays: dict[int, tuple[Any, Any]] = {}
        self._rows: list[tuple[Any, Any]] = []
        self._cells: dict[int, tuple[Any, Any]] = {}
        self._generators: dict[int, tuple[Any, Any]] = {}
        self._seen: dict[int, Any] = {}

    @classmethod
    def of(cls, dataset: Any, has_rows: bool = False) -> "Kept":
        """What the user's modules and this data set hold now."""
        kept = cls(has_rows=has_rows)
        # the data set comes first, whatever the modules hold
        roots = [dataset]
        for module in [each for each in list(sys.modules.values()) if is_own(each)]:
            roots += kept._keep_module(module)
        kept.keep(roots)
        return kept

    def _keep_module(self, module: Any) -> Iterator[Any]:
        """Keeps a module's names and those of its classes; yields what they hold."""
        space = vars(module)
        self._spaces.append((module, dict(space)))
        for name, value in list(space.items()):
            if name.startswith("__"):
                continue
            if is_a(value, type):
                if value.__module__ == module.__name__:
                    self._spaces.append((value, dict(vars(value))))
                    for member in list(vars(value).values()):
                        is_method = is_a(member, (staticmethod, classmethod))
                        yield member.__func__ if is_method else member
            elif not is_a(value, ModuleType):
                yield value

    def keep(self, roots: list[Any]) -> None:
        """Keeps what objects hold that code may change in place."""
        waiting = deque(roots)
        while waiting and len(self._seen) < _MOST:
            value = waiting.popleft()
            if id(value) in self._seen or is_a(value, ATOMS):
                continue
            # kept beside its id, which no other object may get
            self._seen[id(value)] = value
            with suppress(Exception):  # a proxy may fail whatever it is asked
                waiting.extend(self._look_into(value))

    def _look_into(self, value: Any) -> list[Any]:
        """Keeps a value itself; returns what is in it."""
        if is_array(value):
            self._keep_array(value)
            return []
        if type(value) in CONTAINERS:
            self._keep_container(value)
            if not isinstance(value, (dict, list)):
                return []
            members = list(value.values() if isinstance(value, dict) else value)
            if len(members) <= SHORT:
                return members
            self._keep_rows(members)
            return []
        if type(value) is tuple:
            return list(value) if len(value) <= SHORT else []

        if (state := generator_state(value)) is not None:
            self._generators[id(value)] = value, state
            return []
        if is_a(value, FunctionType):
            cells = [each for each in value.__closure__ or () if each is not content(each)]
            self._cells |= {id(each): (each, content(each)) for each in cells}
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            return [*map(content, cells), *defaults]
        if is_a(value, MethodType):
            return [value.__func__, value.__self__]
        if is_a(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        if (inner := referent(value)) is not None:
            return [inner]

        # a dict whose keys are attributes, as programs keep their options in
        is_options = is_a(value, dict) and is_walked(value)
        if is_options and self._has_values:
            self._containers[id(value)] = value, dict(value)
        inside = list(value.values()) if is_options and len(value) <= SHORT else []
        self.has_iterators |= hasattr(type(value), "__next__") and not is_a(value, IOBase)
        # objects of other libraries know who uses them, such as a queue that a thread empties
        if not is_walked(value):
            return inside
        attributes, slots = attributes_of(value), slots_of(value)
        if attributes is not None:
            if attributes is not value:
                self._keep_container(attributes)
            self.held[id(value)] = value
        if slot_members(value):
            self._slots[id(value)] = value, slots
        return [*inside, *(attributes or {}).values(), *slots.values()]

    def _keep_array(self, value: Any) -> None:
        # sparse and quantized tensors have no values that are written one by one
        if not self._has_values or not _is_plain(value) or value.nbytes > LARGEST_ARRAY:
            return
        if value.nbytes <= self._room:
            self._room -= value.nbytes
            self._arrays[id(value)] = value, _copy_of(value)
            self.held[id(value)] = value

    def _keep_container(self, value: Any) -> None:
        if self._has_values:
            self._containers[id(value)] = value, copy(value)
            self.held[id(value)] = value

    def _keep_rows(self, members: list[Any]) -> None:
        """Keeps what each member of a long list or dict holds, one level deep: a row of a table may
        have a place for its picture.
        """
        if not self._has_rows or len(self._rows) + len(members) > _MOST_ROWS:
            return
        kinds = {kind for kind in set(map(type, members)) if kind in (list, dict) or _is_row(kind)}
        if kinds:
            with _collector_off():
                self._keep_each([each for each in members if type(each) in kinds])

    def _keep_each(self, members: list[Any]) -> None:
        for each in members:
            row = each if type(each) in (list, dict) else attributes_of(each)
            if row is not None:
                self._rows.append((row, row.copy()))
            elif slot_members(each):
                self._slots[id(each)] = each, slots_of(each)

    @property
    def generators(self) -> list[Any]:
        """The random generators that are held somewhere."""
        return [generator for generator, _ in self._generators.values()]

    def changed(self) -> Iterator[tuple[str, Any, Callable[[Any], None]]]:
        """Yields what has another value now: its name, the value, and what sets another one."""
        for space, before in self._spaces:
            for name, value in dict(vars(space)).items():
                if before.get(name, before) is not value:
                    yield name, value, partial(setattr, space, name)
        for holder, before in self._containers.values():
            if isinstance(holder, (dict, list)) and len(before) <= SHORT:
                old = before if isinstance(before, dict) else dict(enumerate(before))
                now = dict(holder if isinstance(holder, dict) else enumerate(holder))
                for name, value in now.items():
                    if old.get(name, old) is not value:
                        yield str(name), value, partial(holder.__setitem__, name)
        for holder, before in self._slots.values():
            for name, value in slots_of(holder).items():
                if before.get(name, before) is not value:
                    yield name, value, partial(slot_members(holder)[name].__set__, holder)
        for cell, before in self._cells.values():
            if (value := content(cell)) is not before:
                yield "", value, partial(setattr, cell, "cell_contents")

    def changed_at(self) -> dict[tuple[int, str], Any]:
        """What has another value now, by the identity of a module's or an object's dict, of a
        class, an object with slots, a container, an array or a closure's variable, and the name in
        it, or "".
        """
        places: dict[tuple[int, str], Any] = {}
        for space, before in self._spaces:
            at = id(vars(space) if isinstance(space, ModuleType) else space)
            for name, value in dict(vars(space)).items():
                if before.get(name, before) is not value:
                    places[at, name] = value
        for holder, before in self._containers.values():
            if not isinstance(holder, dict):
                if len(holder) != len(before) or not _same_members(holder, before):
                    places[id(holder), ""] = copy(holder)
                continue
            for name, value in dict(holder).items():
                if before.get(name, before) is not value:
                    places[id(holder), name if isinstance(name, str) else ""] = value
        for holder, before in self._slots.values():
            for name, value in slots_of(holder).items():
                if before.get(name, before) is not value:
                    places[id(holder), name] = value
        for array, before in self._arrays.values():
            with suppress(Exception):  # of a kind that we do not know
                if not _are_equal_arrays(array, before):
                    is_tensor = isinstance(array, torch.Tensor)
                    plain = _bytes_of(array).numpy() if is_tensor else array
                    places[id(array), ""] = plain.tobytes()
        for cell, before in self._cells.values():
            if (value := content(cell)) is not before:
                places[id(cell), ""] = value
        return places

    def restore(self) -> None:
        """Gives everything back what it held. What fails leaves the rest to be restored."""
        for space, before in self._spaces:
            _restore_names(space, before)
        for value, before in self._arrays.values():
            with suppress(Exception):  # nobody can write into it
                _restore_array(value, before)
        # the container itself is filled again, because functions and other modules have it too
        for value, before in (*self._containers.values(), *self._rows):
            with suppress(Exception):
                _refill(value, before)
        for value, before in self._slots.values():
            with suppress(Exception):
                _restore_slots(value, before)
        for cell, before in self._cells.values():
            if content(cell) is not before:
                cell.cell_contents = before
        for generator, state in self._generators.values():
            set_generator_state(generator, state)


@contextmanager
def _collector_off() -> Iterator[None]:
    """A block in which many objects are made, all of which stay: the garbage collector would look
    through them time and again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _refill(value: Any, before: Any) -> None:
    """Gives a container the members that it had."""
    if len(value) != len(before) or not _same_members(value, before):
        value.clear()
        (value.update if hasattr(value, "update") else value.extend)(before)


def _restore_slots(value: Any, before: dict[str, Any]) -> None:
    now = slots_of(value)
    for name, member in slot_members(value).items():
        if name in before and now.get(name, before) is not before[name]:
            member.__set__(value, before[name])
        elif name in now and name not in before:
            member.__delete__(value)


def _restore_array(value: Any, before: Any) -> None:
    if _are_equal_arrays(value, before):
        return
    if not isinstance(value, torch.Tensor):
        value[...] = before
        return
    # a tensor of the inference mode can be written to in it only; its end lets gradients be noted
    with torch.inference_mode(value.is_inference()), torch.no_grad():
        value.copy_(before)


def _restore_names(space: Any, before: dict[str, Any]) -> None:
    """Gives a module's or a class's names the values that they had."""
    now = dict(vars(space))
    for name in now.keys() - before.keys():
        with suppress(AttributeError, TypeError):
            delattr(space, name)
    for name, value in before.items():
        if now.get(name, before) is not value:
            with suppress(AttributeError, TypeError):
                setattr(space, name, value)


def _is_row(kind: type) -> bool:
    return is_own(sys.modules.get(kind.__module__))


def _is_plain(array: Any) -> bool:
    """Whether an array is in this machine's memory, value by value."""
    if not isinstance(array, torch.Tensor):
        return True
    is_strided = array.layout is torch.strided and not array.is_quantized
    return is_strided and array.device.type == "cpu" and not array.is_nested


def _copy_of(array: Any) -> Any:
    return array.detach().clone() if isinstance(array, torch.Tensor) else array.copy()


def _are_equal_arrays(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        # by their bytes: NaN equals NaN, and float8 has no comparison
        return one.shape == other.shape and torch.equal(_bytes_of(one), _bytes_of(other))
    if one.dtype.hasobject:
        return all(a is b for a, b in zip(one.flat, other.flat, strict=True))
    return one.tobytes() == other.tobytes()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


def _same_members(value: Any, old: Any) -> bool:
    if isinstance(value, dict):
        return all(key in value and value[key] is each for key, each in old.items())
    if isinstance(value, set):
        return bool(value == old)
    return all(map(operator.is_, value, old))


def find_generators(value: Any) -> list[Any]:
    """All random generators that an object, its functions and its transforms hold."""
    kept = Kept(has_values=False)
    kept.keep([value])
    return kept.generators
