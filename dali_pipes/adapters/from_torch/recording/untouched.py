"""A data set, random states and caches stay as they were while the data set is run.

`light_copy` makes a copy of the user's objects whose attributes may be written. `states_kept`
restores the random states, and `globals_kept` what the user's modules hold: globals, and what
belongs to their classes and functions. `find_caches` and `forget` keep pictures that are made up
out of every `lru_cache`.
"""

import argparse
import functools
import gc
import operator
import random
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import partial
from io import IOBase
from types import (
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker

CONTAINERS = (dict, list, set, bytearray, deque, OrderedDict, defaultdict)
# values that hold nothing
ATOMS = (str, bytes, int, float, complex, NoneType, np.generic)
# whose attributes are all of the program's own
_NAMESPACES = (SimpleNamespace, argparse.Namespace, threading.local)
# packages whose objects hold generators and pictures: transforms, caches, stages of a pipeline
_WALKED = ("torchvision", "timm", "albumentations", "cachetools", "webdataset")
# packages of dicts whose keys are attributes, and of configurations
_OPTIONS = ("easydict", "munch", "addict", "attrdict", "box", "omegaconf", "ml_collections")
_FUNCTIONS = (FunctionType, MethodType, functools.partial)
_NOT_OWN = {*sys.stdlib_module_names, "dali_pipes"}
_DEEPEST = 5  # levels of objects that are copied
_SHORT = 64  # a longer list or dict holds paths or labels, and no objects
_LARGEST = 64 << 20  # bytes of an array that is copied
_TOTAL = 512 << 20  # bytes of all arrays of which a copy is kept
_MOST = 20_000  # objects and containers that are looked into
_MOST_ROWS = 2_000_000  # rows of long tables that are kept
# no object of these packages is copied: they are large, or know who uses them
_LIBRARIES = {
    *("torch", "torchvision", "timm", "albumentations", "numpy", "pandas", "PIL", "cv2"),
    *("pyarrow", "datasets", "lmdb", "h5py", "scipy", "builtins", "collections", "io", "pathlib"),
    *("threading", "logging", "random", "functools", "types"),
}


def light_copy(value: Any, depth: int = 0, done: dict[int, Any] | None = None) -> Any:
    """A copy of the user's own objects and of their lists and dicts, which shares what is in these.

    Data sets of torch and torchvision count as the user's own.
    """
    # objects that refer to each other in a circle are copied once
    done = {} if done is None else done
    if id(value) in done:
        return done[id(value)]
    fresh: Any
    if type(value) in CONTAINERS:
        done[id(value)] = fresh = copy(value)
        # a short list may hold objects, such as the data sets of a ConcatDataset, and a short dict
        # may hold other dicts
        if depth < _DEEPEST and len(fresh) <= _SHORT:
            if isinstance(fresh, list):
                fresh[:] = [light_copy(each, depth + 1, done) for each in fresh]
            elif isinstance(fresh, dict):
                for key in list(fresh):
                    fresh[key] = light_copy(fresh[key], depth + 1, done)
        return fresh

    # arrays may be a cache that the data set fills
    if is_a(value, np.ndarray):
        done[id(value)] = fresh = _copy_array(value)
        return fresh
    if type(value) is torch.Tensor and value.device.type == "cpu":
        done[id(value)] = fresh = value.clone() if value.nbytes <= _LARGEST else value
        return fresh

    if depth > _DEEPEST or is_a(value, type) or not is_copied(value):
        return value
    fresh = _copy_object(value)
    if fresh is value:
        return value
    if hasattr(fresh, "__del__"):
        kind: Any = type(fresh)
        try:
            fresh.__class__ = _without_finalizer(kind)
        except TypeError:  # a class in C, or one with slots
            return value
    attributes: dict[str, Any] = vars(fresh)

    # noted before its attributes are copied, which may refer to it
    done[id(value)] = fresh
    for name, each in list(attributes.items()):
        attributes[name] = light_copy(each, depth + 1, done)
    return fresh


@functools.cache
def _without_finalizer(kind: type) -> type:
    """The same class for a copy, whose end must not close what the original goes on using."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__slots__": ()}
    return type(kind.__name__, (kind,), {**names, "__del__": lambda self: None})


def _copy_array(value: Any) -> Any:
    """A copy of an array; of a large one a view that cannot be written to."""
    if value.nbytes <= _LARGEST:
        return value.copy()
    view = value.view()
    view.flags.writeable = False
    return view


def _copy_object(value: Any) -> Any:
    """A copy of an object with the same attributes; the object itself if it cannot be copied."""
    with suppress(Exception):  # any error of a class that we do not know
        return copy(value)
    # a `__getattr__` that asks an inner object has no end in a copy that has no attributes yet
    with suppress(Exception):
        fresh = object.__new__(type(value))
        fresh.__dict__.update(value.__dict__)
        return fresh
    return value


def is_a(value: Any, kinds: Any) -> bool:
    """The same as `isinstance`, which asks the object itself: a proxy may fail whatever it is
    asked, and one whose object is gone does.
    """
    return issubclass(type(value), kinds)


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The dict of an object's attributes; None: it has none."""
    with suppress(Exception):
        space = value.__dict__
        return space if is_a(space, dict) else None
    return None


def _slot_members(value: Any) -> dict[str, Any]:
    """What reads and sets the slots that classes of the user's program give an object."""
    kind: Any = type(value)
    return _slots_in(kind)


@functools.lru_cache(4096)
def _slots_in(kind: type) -> dict[str, Any]:
    return {
        name: member
        for each in kind.__mro__
        if is_own(sys.modules.get(each.__module__))
        for name, member in vars(each).items()
        if type(member) is MemberDescriptorType
    }


def slots_of(value: Any) -> dict[str, Any]:
    """What an object of the user's program has in its slots."""
    held = {}
    for name, member in _slot_members(value).items():
        with suppress(AttributeError):  # it has no value yet
            held[name] = member.__get__(value)
    return held


def referent(value: Any) -> Any:
    """The object of a weak reference; None: it is none, or the object is gone."""
    if type(value) is weakref.ReferenceType:
        return value()
    if type(value) in weakref.ProxyTypes:
        return getattr(value.__setattr__, "__self__", None)
    return None


def is_array(value: Any) -> bool:
    return is_a(value, np.ndarray) or type(value) is torch.Tensor


def is_copied(value: Any) -> bool:
    """Whether an object is one of the user's own that may keep something in its attributes."""
    if attributes_of(value) is None or is_a(value, _FUNCTIONS):
        return False
    if is_a(value, torch.utils.data.Dataset):
        return True
    # A program may have a package of its own with a library's name, such as `datasets`. An open
    # ZipFile of Python's own library must not be copied: its copy would close the file.
    name = type(value).__module__
    module = name.partition(".")[0]
    is_library = module in _LIBRARIES or module in sys.stdlib_module_names
    return not is_library or is_own(sys.modules.get(name))


@contextmanager
def states_kept(device: torch.device | None = None) -> Iterator[None]:
    """Restores Python's and NumPy's random states afterwards, and torch's on the CPU and, if it is
    a GPU, on the device.
    """
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if _is_gpu(device) else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def seed_all(seed: int, device: torch.device | None = None) -> None:
    """Seeds Python's and NumPy's random numbers, and torch's on the CPU and, if it is a GPU, on the
    device.
    """
    random.seed(seed)
    np.random.seed(seed)
    # not torch.manual_seed, which seeds all GPUs too, whose states nobody restores
    torch.default_generator.manual_seed(seed)
    if _is_gpu(device):
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def _is_gpu(device: torch.device | None) -> bool:
    return device is not None and device.type == "cuda"


def random_states() -> tuple[Any, ...]:
    """The states of random numbers, in the order of `STATES`, to be compared."""
    numpy: Any = np.random.get_state()
    return (
        random.getstate(),
        (numpy[1].tobytes(), numpy[2]),
        torch.get_rng_state().numpy().tobytes(),
    )


STATES = ("random", "numpy.random", "torch", "a generator of its own")


@contextmanager
def in_worker(dataset: Any, count: int, number: int = -1) -> Iterator[None]:
    """A block in which `get_worker_info` tells of one of some workers, by default of the last; with
    a count of 0, of none.
    """
    if not count:
        yield
        return
    before = worker._worker_info
    info = worker.WorkerInfo(
        id=number % count,
        num_workers=count,
        seed=torch.initial_seed() + number % count,
        dataset=dataset,
    )
    worker._worker_info = info
    try:
        yield
    finally:
        worker._worker_info = before


def find_caches() -> list[Any]:
    """All functions with an `lru_cache` outside of libraries."""
    # only the garbage collector has a list of them, since it has all objects
    kind = functools._lru_cache_wrapper
    return [
        each
        for each in gc.get_objects()
        if type(each) is kind and not is_installed(str(getattr(each, "__module__", "") or ""))
    ]


def is_installed(name: str) -> bool:
    """Whether a module is of the standard library, or of a package that is installed."""
    if name.partition(".")[0] in _NOT_OWN:
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def is_own(module: Any) -> bool:
    """Whether a module is one of the user's program."""
    name = getattr(module, "__name__", "")
    if name == "__main__":
        return True
    file = getattr(module, "__file__", None)
    if not isinstance(name, str) or not isinstance(file, str):
        return False
    is_library = name.partition(".")[0] in _NOT_OWN
    return not (is_library or "site-packages" in file or "dist-packages" in file)


def used(caches: list[Any]) -> dict[int, tuple[int, int]]:
    """How often each cache was asked: hits and misses."""
    return {id(each): (each.cache_info().hits, each.cache_info().misses) for each in caches}


def forget(caches: list[Any], before: dict[int, tuple[int, int]]) -> bool:
    """Empties the caches that were asked since `before`; returns whether there are any."""
    asked = [each for each in caches if used([each])[id(each)] != before.get(id(each))]
    for each in asked:
        each.cache_clear()
        before[id(each)] = (0, 0)
    return bool(asked)


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
            if len(members) <= _SHORT:
                return members
            self._keep_rows(members)
            return []
        if type(value) is tuple:
            return list(value) if len(value) <= _SHORT else []

        if (state := generator_state(value)) is not None:
            self._generators[id(value)] = value, state
            return []
        if is_a(value, FunctionType):
            cells = [each for each in value.__closure__ or () if each is not _content(each)]
            self._cells |= {id(each): (each, _content(each)) for each in cells}
            defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
            return [*map(_content, cells), *defaults]
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
        inside = list(value.values()) if is_options and len(value) <= _SHORT else []
        self.has_iterators |= hasattr(type(value), "__next__") and not is_a(value, IOBase)
        # objects of other libraries know who uses them, such as a queue that a thread empties
        if not is_walked(value):
            return inside
        attributes, slots = attributes_of(value), slots_of(value)
        if attributes is not None:
            if attributes is not value:
                self._keep_container(attributes)
            self.held[id(value)] = value
        if _slot_members(value):
            self._slots[id(value)] = value, slots
        return [*inside, *(attributes or {}).values(), *slots.values()]

    def _keep_array(self, value: Any) -> None:
        # sparse and quantized tensors have no values that are written one by one
        if not self._has_values or not _is_plain(value) or value.nbytes > _LARGEST:
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
            elif _slot_members(each):
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
            if isinstance(holder, (dict, list)) and len(before) <= _SHORT:
                old = before if isinstance(before, dict) else dict(enumerate(before))
                now = dict(holder if isinstance(holder, dict) else enumerate(holder))
                for name, value in now.items():
                    if old.get(name, old) is not value:
                        yield str(name), value, partial(holder.__setitem__, name)
        for holder, before in self._slots.values():
            for name, value in slots_of(holder).items():
                if before.get(name, before) is not value:
                    yield name, value, partial(_slot_members(holder)[name].__set__, holder)
        for cell, before in self._cells.values():
            if (value := _content(cell)) is not before:
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
            if (value := _content(cell)) is not before:
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
            if _content(cell) is not before:
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


def is_walked(value: Any) -> bool:
    """Whether an object is one of the user's classes, a namespace, a transform or a data set, or
    part of one.
    """
    if is_a(value, (type, ModuleType)):
        return False
    name = type(value).__module__
    is_known = name.partition(".")[0] in _WALKED
    kinds = torch.utils.data.Dataset, torch.nn.Module
    return (
        is_known
        or is_namespace(value)
        or is_a(value, kinds)
        or (isinstance(name, str) and is_own(sys.modules.get(name)))
    )


def is_namespace(value: Any) -> bool:
    """Whether an object's attributes are all of the program's own."""
    return type(value) in _NAMESPACES or _package_of(value) in _OPTIONS


def _package_of(value: Any) -> str:
    return str(type(value).__module__).partition(".")[0]


def _refill(value: Any, before: Any) -> None:
    """Gives a container the members that it had."""
    if len(value) != len(before) or not _same_members(value, before):
        value.clear()
        (value.update if hasattr(value, "update") else value.extend)(before)


def _restore_slots(value: Any, before: dict[str, Any]) -> None:
    now = slots_of(value)
    for name, member in _slot_members(value).items():
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


def _content(cell: Any) -> Any:
    # the cell of a variable that has no value yet raises ValueError
    try:
        return cell.cell_contents
    except ValueError:
        return cell


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


def generator_state(value: Any) -> Any:
    """The state of a random generator, to be compared and restored; None: it is none."""
    if is_a(value, np.random.Generator):
        return value.bit_generator.state
    if is_a(value, np.random.RandomState):
        return value.get_state(legacy=False)
    if is_a(value, random.Random) and not is_a(value, random.SystemRandom):
        return value.getstate()
    return value.get_state() if is_a(value, torch.Generator) else None


def set_generator_state(value: Any, state: Any) -> None:
    if is_a(value, np.random.Generator):
        value.bit_generator.state = state
    elif is_a(value, random.Random):
        value.setstate(state)
    else:
        value.set_state(state)


def find_generators(value: Any) -> list[Any]:
    """All random generators that an object, its functions and its transforms hold."""
    kept = Kept(has_values=False)
    kept.keep([value])
    return kept.generators
