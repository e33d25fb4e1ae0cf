"""What a program keeps from sample to sample: its objects, and what is in them."""

import dis
import pickle
import random
import sys
from collections import deque
from collections.abc import Iterator
from functools import lru_cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

_MOST_NODES, _DEEPEST, _LONGEST = 5000, 8, 64  # of what is searched; longer lists hold data
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")
_NOTHING_INSIDE = (str, bytes, int, float, complex, type(None), torch.Tensor, np.ndarray)
_OPAQUE = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


def find_shared(**roots: Any) -> str | None:
    """The path to an object that other processes use as well, such as a queue; None: there is none
    that can be reached from these.
    """
    for value, path, _ in reach(roots):
        module = type(value).__module__
        if module.startswith("multiprocessing.") and not module.endswith(".context"):
            return path
    return None


def reach(roots: dict[str, Any]) -> Iterator[tuple[Any, str, bool]]:
    """What can be reached from some objects by attributes, short containers, closures and the
    global names that their functions use: each with the path to it, and whether it is inside of
    one of albumentations' transforms.

    Big data sets hold their data in long lists and in arrays, which are not looked into.
    """
    known = set[int]()
    queue = deque((value, name, 0, False) for name, value in roots.items())
    while queue and len(known) < _MOST_NODES:
        value, path, depth, inside = queue.popleft()
        if id(value) in known or isinstance(value, _NOTHING_INSIDE):
            continue
        known.add(id(value))
        yield value, path, inside
        if depth < _DEEPEST and not isinstance(value, _OPAQUE):
            inside = type(value).__module__.startswith("albumentations.")
            queue.extend((each, path + step, depth + 1, inside) for step, each in _parts_of(value))


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What can be reached from a value in one step, and how."""
    if isinstance(value, dict):
        if len(value) <= _LONGEST:
            yield from ((f"[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, (list, tuple, set, deque)):
        if len(value) <= _LONGEST:
            yield from ((f"[{at}]", each) for at, each in enumerate(value))
    elif isinstance(value, partial):
        yield from (("", value.func), ("", value.args), ("", value.keywords))
    elif isinstance(value, MethodType):
        yield from (("", value.__self__), ("", value.__func__))
    elif isinstance(value, FunctionType):
        yield from _names_of(value)
    elif isinstance(value, type):
        if not _is_of_a_library(sys.modules.get(value.__module__)):
            yield from ((f".{name}", each) for name, each in vars(value).items())
    elif isinstance(value, property):
        yield "", value.fget
    elif not isinstance(value, (ModuleType, BuiltinFunctionType)):
        yield from ((f".{name}", each) for name, each in getattr(value, "__dict__", {}).items())
        yield from (("", kind) for kind in type(value).__mro__)


def _names_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function's own code names: globals, also those of the program's other modules, and
    variables of the functions around it.
    """
    if _is_of_a_library(sys.modules.get(function.__module__)):
        return
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if not isinstance(value, ModuleType):
            yield f":{name}", value
        elif not _is_of_a_library(value):
            for inner in function.__code__.co_names:
                yield f":{name}.{inner}", getattr(value, inner, None)

    for cell in function.__closure__ or ():
        try:
            yield "", cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    yield "", function.__defaults__
    yield "", getattr(function, "__wrapped__", None)


def _is_of_a_library(module: ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    if file is None:  # built-in modules have none, nor has a program that is typed in
        return getattr(module, "__name__", "") not in ("__main__", "__mp_main__")
    return any(part in file for part in _LIBRARIES) or file.startswith("<frozen")


class Counters:
    """The numbers that objects of a program's own have as attributes, such as a count of samples:
    what is made once more has to find them as they were.
    """

    def __init__(self, **roots: Any):
        self._objects = [
            vars(value)
            for value, _, _ in reach(roots)
            if isinstance(getattr(value, "__dict__", None), dict)
            and not isinstance(value, FunctionType)
            and not _is_of_a_library(sys.modules.get(type(value).__module__))
        ]

    def read(self) -> list[dict[str, float]]:
        return [
            {name: each for name, each in own.items() if type(each) in (int, float)}
            for own in self._objects
        ]

    def restore(self, values: list[dict[str, float]]) -> None:
        for own, before in zip(self._objects, values, strict=True):
            own |= {
                name: each for name, each in before.items() if type(own.get(name)) is type(each)
            }


def memory_of(function: Any) -> bytes | None:
    """What a collate function keeps from call to call; None: it keeps something that cannot be
    read here. In the training process it would be kept for all workers together.
    """
    if isinstance(function, partial):
        return memory_of(function.func)
    if isinstance(function, FunctionType):
        return _NOTHING if _keeps_nothing(function) else None
    owner = function.__self__ if isinstance(function, MethodType) else function
    if isinstance(owner, Dataset):  # which may be big, and does not change in a worker as a rule
        return _NOTHING
    try:
        return pickle.dumps(vars(owner))
    except Exception:
        return None


_NOTHING = b""


@lru_cache
def _keeps_nothing(function: FunctionType) -> bool:
    """Whether it sets no variables outside."""
    outside = function.__code__.co_freevars
    return not any(
        step.opname == "STORE_GLOBAL" or (step.opname == "STORE_DEREF" and step.argval in outside)
        for step in dis.get_instructions(function)
    )
