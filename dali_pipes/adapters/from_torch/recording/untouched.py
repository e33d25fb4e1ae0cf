"""A data set, random states and caches stay as they were while the data set is run.

`light_copy` makes a copy of the user's objects whose attributes may be written. `states_kept`
restores the random states, and `globals_kept` the containers that are globals of the user's
modules. `find_caches` and `forget` keep pictures that are made up out of every `lru_cache`.
"""

import functools
import gc
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch

_CONTAINERS = (dict, list, set, bytearray, deque, OrderedDict, defaultdict)
_FUNCTIONS = (FunctionType, MethodType, functools.partial)
_DEEPEST = 5  # levels of objects that are copied
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
    if type(value) in _CONTAINERS:
        done[id(value)] = fresh = copy(value)
        # a short list may hold objects, such as the data sets of a ConcatDataset; a long one holds
        # paths or labels
        if isinstance(fresh, list) and depth < 2 and len(fresh) <= 64:
            fresh[:] = [light_copy(each, depth + 1, done) for each in fresh]
        return fresh

    if depth > _DEEPEST or isinstance(value, type) or not _is_users(value):
        return value
    try:
        fresh = copy(value)
        attributes: dict[str, Any] = vars(fresh)
    except Exception:  # any error of a class that we do not know
        return value
    if fresh is value:
        return value
    if hasattr(fresh, "__del__"):
        kind: Any = type(fresh)
        try:
            fresh.__class__ = _without_finalizer(kind)
        except TypeError:  # a class in C, or one with slots
            return value

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


def _is_users(value: Any) -> bool:
    """Whether an object is one of the user's own that may keep something in its attributes."""
    if not hasattr(value, "__dict__") or isinstance(value, _FUNCTIONS):
        return False
    if isinstance(value, torch.utils.data.Dataset):
        return True
    # an open ZipFile of Python's own library must not be copied: its copy would close the file
    module = type(value).__module__.partition(".")[0]
    return module not in _LIBRARIES and module not in sys.stdlib_module_names


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


STATES = ("random", "numpy.random", "torch")


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
    if name.partition(".")[0] in (*sys.stdlib_module_names, "dali_pipes"):
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


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
def globals_kept(*functions: Any) -> Iterator[None]:
    """Restores the dicts, lists and sets that are globals of these functions' modules."""
    spaces = {id(space): space for each in functions if (space := _globals(each)) is not None}
    before = [
        (value, copy(value))
        for space in spaces.values()
        for name, value in list(space.items())
        if type(value) in _CONTAINERS and not name.startswith("__")
    ]

    try:
        yield
    finally:
        # the container itself is filled again, because functions and other modules have it too
        for value, old in before:
            if len(value) != len(old) or not _same_members(value, old):
                value.clear()
                (value.update if hasattr(value, "update") else value.extend)(old)


def _same_members(value: Any, old: Any) -> bool:
    if isinstance(value, dict):
        return all(key in value and value[key] is each for key, each in old.items())
    return all(one is other for one, other in zip(value, old, strict=False))


def _globals(value: Any) -> dict[str, Any] | None:
    """The globals of the module that defines a class; None for one of a library."""
    kind = value if isinstance(value, type) else type(value)
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__.partition(".")[0] in _LIBRARIES:
        return None
    return vars(module)
