"""What can be reached from a program's objects, and what its code names."""

import random
import sys
from collections import deque
from collections.abc import Iterator
from functools import lru_cache, partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import numpy as np
import torch

_MOST_NODES, _DEEPEST, _LONGEST = 5000, 8, 64  # of what is searched; longer lists hold data
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")
# libraries whose data sets and collate functions are none of the program's own
_KNOWN = frozenset(
    {
        *("torch", "torchvision", "torchaudio", "torchdata", "timm", "datasets", "webdataset"),
        *("numpy", "PIL", "cv2", "albumentations", "albucore", "kornia", "dali_pipes"),
        *("lightning", "pytorch_lightning", "accelerate", "transformers", "ray"),
    }
)
SCALARS = (str, bytes, int, float, complex, type(None))
ARRAYS = (torch.Tensor, np.ndarray)
CONTAINERS = (dict, list, set, deque)
_OPAQUE = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


class Found(NamedTuple):
    """Something that a program keeps.

    Attributes:
        path: how to reach it, such as `dataset.rng`.
        is_own: whether an object of the program's own holds it, and none of a library.
        is_of_albumentations: whether one of its transforms does.
    """

    value: Any
    path: str
    is_own: bool
    is_of_albumentations: bool


def reach(roots: dict[str, Any]) -> Iterator[Found]:
    """What can be reached from some objects by attributes, short containers, closures and the
    global names that their functions use.

    Big data sets hold their data in long lists and in arrays, which are not looked into.
    """
    known = set[int]()
    for value in roots.values():
        _note_own_package(value)
    todo = deque((Found(value, name, True, False), 0) for name, value in roots.items())
    while todo and len(known) < _MOST_NODES:
        found, depth = todo.popleft()
        value = found.value
        if id(value) in known or isinstance(value, SCALARS):
            continue
        known.add(id(value))
        yield found
        if depth < _DEEPEST and not isinstance(value, (*_OPAQUE, *ARRAYS)):
            is_own = found.is_own
            if not isinstance(value, (*CONTAINERS, tuple, partial, MethodType)):
                is_own = not is_of_a_library(class_of(value))
            inside = type(value).__module__.startswith("albumentations.")
            todo.extend(
                (Found(each, found.path + step, is_own, inside), depth + 1)
                for step, each in _parts_of(value)
            )


def class_of(value: Any) -> Any:
    return value if isinstance(value, (type, FunctionType)) else type(value)


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
        if not is_of_a_library(value):
            yield from ((f".{name}", each) for name, each in vars(value).items())
    elif isinstance(value, property):
        yield "", value.fget
    elif isinstance(value, (staticmethod, classmethod)):
        yield "", value.__func__
    elif not isinstance(value, (ModuleType, BuiltinFunctionType)):
        yield from ((f".{name}", each) for name, each in attributes_of(value).items())
        yield from ((f".{kind.__name__}", kind) for kind in type(value).__mro__)


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object has, by name, also in slots."""
    kind: Any = type(value)
    slots = {name: getattr(value, name) for name in _slots_of(kind) if hasattr(value, name)}
    own: Any = getattr(value, "__dict__", None)
    # an object may answer to any name; that of a class is a proxy
    return own | slots if isinstance(own, (dict, MappingProxyType)) else slots


@lru_cache
def _slots_of(kind: type) -> tuple[str, ...]:
    slots = [vars(each).get("__slots__", ()) for each in kind.__mro__]
    names = [name for each in slots for name in ((each,) if isinstance(each, str) else each)]
    return tuple([name for name in names if name not in ("__dict__", "__weakref__")])


def _names_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function's own code names: globals, also those of the program's other modules, and
    variables of the functions around it.
    """
    if is_of_a_library(function):
        return
    names = names_in(function.__code__)
    for name in names:
        # a module may be imported inside of the function
        value = function.__globals__.get(name, sys.modules.get(name))
        if isinstance(value, ModuleType):
            yield from _names_of_module(value, f":{name}", names)
        else:
            yield f":{name}", value

    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f":{name}", cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    yield "", function.__defaults__
    yield "", function.__kwdefaults__
    yield "", getattr(function, "__wrapped__", None)


def _names_of_module(
    module: ModuleType, path: str, names: tuple[str, ...], depth: int = 3
) -> Iterator[tuple[str, Any]]:
    """What these names are in a module of the program's, and in modules that it has."""
    if is_of_a_library(module) or not depth:
        return
    for name in [each for each in names if each in vars(module)]:
        value = vars(module)[name]
        if isinstance(value, ModuleType):
            yield from _names_of_module(value, f"{path}.{name}", names, depth - 1)
        else:
            yield f"{path}.{name}", value


@lru_cache
def names_in(code: CodeType) -> tuple[str, ...]:
    """Global names and attributes in code, also in lambdas, comprehensions and functions in it."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    names = [code.co_names, *map(names_in, inner)]
    return tuple(dict.fromkeys(name for each in names for name in each))


def asks_for_its_worker(function: Any) -> bool:
    """Whether code that can be reached from a function asks in which worker it is."""
    functions = [found.value for found in reach({"": function})]
    return any(
        "get_worker_info" in names_in(each.__code__)
        for each in functions
        if isinstance(each, FunctionType) and not is_of_a_library(each)
    )


def is_of_a_library(thing: Any) -> bool:
    """Whether a module, a class or a function is of a library, and none of the program's own."""
    name = str(thing.__name__ if isinstance(thing, ModuleType) else thing.__module__)
    package = name.partition(".")[0]
    if package in _OWN_PACKAGES:
        return False
    if package == __name__.partition(".")[0]:  # also in a checkout, whose path is a program's
        return True
    module = thing if isinstance(thing, ModuleType) else sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None and module in (None, thing):  # one whose name nobody has noted
        file = _file_of_code(thing)
    if file is None:  # built-in modules have none, nor has a program that is typed in
        return name not in ("__main__", "__mp_main__")
    return any(part in file for part in _LIBRARIES) or file.startswith("<")


def _file_of_code(thing: Any) -> str | None:
    functions = [thing] if isinstance(thing, FunctionType) else [*vars(thing).values()]
    codes = [each.__code__ for each in functions if isinstance(each, FunctionType)]
    return codes[0].co_filename if codes else None


# packages that are installed beside the libraries, and are the program's own
_OWN_PACKAGES: set[str] = set()


def innermost(root: Any) -> Any:
    """The data set of a program that PyTorch's own are made of, such as `Subset`; of several the
    first.
    """
    while type(root).__module__.startswith("torch.utils.data."):
        parts = getattr(root, "datasets", ())
        if isinstance(parts, dict):
            parts = list(parts.values())
        inner = getattr(root, "dataset", None)
        if inner is None and isinstance(parts, (list, tuple)) and parts:
            inner = parts[0]
        if inner is None:
            break
        root = inner
    return root


def _note_own_package(root: Any) -> None:
    """Notes the package of a data set or collate function, which may be installed."""
    root = innermost(root)
    kind = root if isinstance(root, (type, FunctionType)) else type(root)
    package = str(kind.__module__).partition(".")[0]
    if package not in _KNOWN and package not in sys.stdlib_module_names:
        _OWN_PACKAGES.add(package)


def look(**roots: Any) -> dict[str, Any]:
    """What a program has by name: numbers and texts themselves, and who all else is."""
    found = dict[str, Any]()
    for value, path, _, _ in reach(roots):
        found[path] = id(value)
        if not isinstance(value, (type, FunctionType, ModuleType, *ARRAYS)):
            for name, each in attributes_of(value).items():
                found[f"{path}.{name}"] = each if isinstance(each, SCALARS) else id(each)
    return found
