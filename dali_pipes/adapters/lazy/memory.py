"""What a program keeps from sample to sample: its objects, and what is in them."""

import copy
import dis
import io
import pickle
import queue
import random
import sys
import tarfile
from collections import deque
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import torch
from torch.utils.data import Dataset

_MOST_NODES, _DEEPEST, _LONGEST = 5000, 8, 64  # of what is searched; longer lists hold data
_MOST_COPIED = 1000  # entries of a container, and numbers of an array
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")
_SCALARS = (str, bytes, int, float, complex, type(None))
_ARRAYS = (torch.Tensor, np.ndarray)
_CONTAINERS = (dict, list, set, deque)
_NAMES_OF_TYPES = frozenset({"ndarray", "__class__"})
# OpenCV's is cv2.error
_CAUGHT = frozenset(
    {
        *("Exception", "BaseException", "TypeError", "ValueError", "error"),
        *("AttributeError", "RuntimeError"),
    }
)
_NOTHING = object()
_OPAQUE = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


def find_shared(**roots: Any) -> str | None:
    """The path to an object that other processes use as well, such as a queue; None: there is none
    that can be reached from these.
    """
    for value, path, _, _ in reach(roots):
        module = type(value).__module__
        if module.startswith("multiprocessing.") and not module.endswith(".context"):
            return path
    return None


def why_arrays_are_true(**roots: Any) -> str | None:
    """Why no array may wait: a function of the program's that can be reached would do something
    else with what stands for one, and nobody would see it. None: there is no such function.
    """
    for value, _, _, _ in reach(roots):
        if not isinstance(value, FunctionType):
            continue
        if _is_of_a_library(sys.modules.get(value.__module__)):
            continue
        code = value.__code__
        name = f"{value.__qualname__} ({Path(code.co_filename).name}:{code.co_firstlineno})"
        if _tests_types(code):
            return f"{name} asks whether type(…) is a class"
        if _catches_all(code):
            return f"{name} catches errors, also those of code in C that takes true arrays only"
    return None


@lru_cache
def _tests_types(code: CodeType) -> bool:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    if "type" not in code.co_names or _NAMES_OF_TYPES.isdisjoint(code.co_names):
        return any(map(_tests_types, inner))
    return any(step.opname == "IS_OP" for step in dis.get_instructions(code))


@lru_cache
def _catches_all(code: CodeType) -> bool:
    """Whether it catches an error of any kind, or the kinds that code in C raises."""
    names = [step.opname for step in dis.get_instructions(code)]
    is_bare = ("PUSH_EXC_INFO", "POP_TOP") in pairwise(names)
    chooses = "CHECK_EXC_MATCH" in names or "suppress" in code.co_names
    if is_bare or (chooses and not _CAUGHT.isdisjoint(code.co_names)):
        return True
    return any(_catches_all(each) for each in code.co_consts if isinstance(each, CodeType))


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
    todo = deque((Found(value, name, True, False), 0) for name, value in roots.items())
    while todo and len(known) < _MOST_NODES:
        found, depth = todo.popleft()
        value = found.value
        if id(value) in known or isinstance(value, _SCALARS):
            continue
        known.add(id(value))
        yield found
        if depth < _DEEPEST and not isinstance(value, (*_OPAQUE, *_ARRAYS)):
            is_own = found.is_own
            if not isinstance(value, (*_CONTAINERS, tuple, partial, MethodType)):
                is_own = not _is_of_a_library(sys.modules.get(_class_of(value).__module__))
            inside = type(value).__module__.startswith("albumentations.")
            todo.extend(
                (Found(each, found.path + step, is_own, inside), depth + 1)
                for step, each in _parts_of(value)
            )


def _class_of(value: Any) -> Any:
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
        if not _is_of_a_library(sys.modules.get(value.__module__)):
            yield from ((f".{name}", each) for name, each in vars(value).items())
    elif isinstance(value, property):
        yield "", value.fget
    elif not isinstance(value, (ModuleType, BuiltinFunctionType)):
        yield from ((f".{name}", each) for name, each in getattr(value, "__dict__", {}).items())
        yield from ((f".{kind.__name__}", kind) for kind in type(value).__mro__)


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


class Kept(NamedTuple):
    """What a program kept at some time, by the paths to it. Pickled, only its numbers are.

    Attributes:
        names: variables and attributes of its objects.
        contents: entries of containers, numbers of small arrays, positions in files; None: they
            are not known.
    """

    names: dict[str, dict[str, Any]]
    contents: dict[str, Any] | None

    def __reduce__(self) -> Any:
        names = {
            path: {name: each for name, each in own.items() if type(each) in (int, float)}
            for path, own in self.names.items()
        }
        return Kept, ({path: own for path, own in names.items() if own}, None)


class Memory:
    """What a program keeps from sample to sample, such as a count of samples or a list of them:
    what is made once more has to find all of it as it was.

    Args:
        roots: what the program consists of, by name.
    """

    def __init__(self, **roots: Any):
        self._roots = roots
        self._spaces: dict[str, _Space] = {}
        self._things: dict[str, Any] = {}
        for value, path, is_own, _ in reach(roots):
            if isinstance(value, FunctionType):
                for name, holder in _variables_set_by(value):
                    self._spaces[f"{path}:{value.__qualname__}:{name}"] = _Space(holder, name)
            elif isinstance(value, (*_CONTAINERS, *_ARRAYS, io.IOBase)):
                if is_own and not _is_one_way(value):
                    self._things[path] = value
            elif not _is_of_a_library(sys.modules.get(_class_of(value).__module__)):
                self._spaces[path] = _Space(value)

    def read(self) -> Kept:
        names = {path: space.read() for path, space in self._spaces.items()}
        return Kept(names, {path: _contents_of(each) for path, each in self._things.items()})

    def restore(self, kept: Kept, *roots: str) -> None:
        """Sets all back.

        Args:
            roots: what will be asked once more.

        Raises:
            RuntimeError: something there cannot be set back.
        """
        for path, contents in (kept.contents or {}).items():
            if not _set_contents(self._things[path], contents):
                raise _cannot_be_set_back(path)
        for path, before in kept.names.items():
            if path not in self._spaces:
                raise _cannot_be_set_back(path)
            space = self._spaces[path]
            now = space.read()
            for name, value in now.items():
                if name not in before and kept.contents is not None:  # else it is not known
                    space.forget(name)
                elif before.get(name, value) is not value:
                    space.set(name, before[name])
        for found in reach({name: self._roots[name] for name in roots}):
            if found.is_own and _is_one_way(found.value):
                raise _cannot_be_set_back(found.path)


def _cannot_be_set_back(path: str) -> RuntimeError:
    return RuntimeError(
        f"what failed while pictures waited has to be made once more, but {path} has gone on "
        "meanwhile and cannot be set back; keep nothing like it from sample to sample, or use the "
        "DataLoader itself"
    )


class _Space:
    """Where a program has variables: an object, a class, a module or a closure.

    Args:
        only: of a module, the name of its variable.
    """

    def __init__(self, holder: Any, only: str | None = None):
        self._holder, self._only = holder, only

    def read(self) -> dict[str, Any]:
        """What may be set back, by name. What else a sample makes once, such as a database, is to
        be kept.
        """
        if isinstance(self._holder, CellType):
            names = {"cell_contents": getattr(self._holder, "cell_contents", _NOTHING)}
        elif self._only is not None:
            names = {self._only: self._holder.get(self._only, _NOTHING)}
        else:
            names = getattr(self._holder, "__dict__", {})
        data = (*_SCALARS, tuple, *_CONTAINERS, *_ARRAYS, np.generic, PIL.Image.Image)
        return {
            name: each
            for name, each in names.items()
            if isinstance(each, data) or _is_one_way(each)
        }

    def set(self, name: str, value: Any) -> None:
        if isinstance(self._holder, (type, CellType)):
            setattr(self._holder, name, value)
        else:
            self._dict[name] = value

    def forget(self, name: str) -> None:
        if isinstance(self._holder, (type, CellType)):
            delattr(self._holder, name)
        else:
            del self._dict[name]

    @property
    def _dict(self) -> dict[str, Any]:
        return self._holder if self._only is not None else vars(self._holder)


def _variables_set_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Variables outside of a function that it sets, and what holds them."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for opname, name in _sets(function.__code__):
        if opname == "STORE_GLOBAL":
            yield name, function.__globals__
        elif name in cells:
            yield name, cells[name]


@lru_cache
def _sets(code: CodeType) -> frozenset[tuple[str, str]]:
    return frozenset(
        (step.opname, step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("STORE_GLOBAL", "STORE_DEREF")
    )


def _is_one_way(value: Any) -> bool:
    """Whether it gives one thing after the other, and cannot be set back."""
    if isinstance(value, io.IOBase):
        return not value.closed and value.readable() and not value.seekable()
    if isinstance(value, tarfile.TarFile):
        return isinstance(value.fileobj, tarfile._Stream)  # type: ignore[attr-defined]
    return hasattr(type(value), "__next__") or isinstance(value, (queue.Queue, queue.SimpleQueue))


def _contents_of(thing: Any) -> Any:
    """What is in a container, an array or a file that may change; of big ones a number that tells
    whether they have.
    """
    if isinstance(thing, io.IOBase):
        try:
            return thing.tell()
        except (OSError, ValueError):  # a text of which some lines were taken, or a closed file
            return None
    if isinstance(thing, torch.Tensor):
        if "_lazy" in vars(thing) or thing.numel() > _MOST_COPIED:
            return 0 if thing.is_inference() else thing._version
        return thing.detach().clone()
    if isinstance(thing, np.ndarray):
        return thing.copy() if type(thing) is np.ndarray and thing.size <= _MOST_COPIED else 0
    return copy.copy(thing) if len(thing) <= _MOST_COPIED else len(thing)


def _set_contents(thing: Any, before: Any) -> bool:
    """Sets it back; False: that is impossible."""
    now = _contents_of(thing)
    if isinstance(thing, io.IOBase) and before is not None and now is not None:
        thing.seek(before)
    elif isinstance(before, int) or isinstance(now, int) or before is None:
        return type(now) is type(before) and now == before
    elif isinstance(thing, torch.Tensor):
        if not torch.equal(now, before):
            thing.detach().copy_(before)
    elif isinstance(thing, np.ndarray):
        if thing.flags.writeable:
            thing[...] = before
    elif _ids(now) != _ids(before):
        thing.clear()
        getattr(thing, "update" if isinstance(thing, (dict, set)) else "extend")(before)
    return True


def _ids(container: Any) -> list[int]:
    values = container.values() if isinstance(container, dict) else ()
    return [*map(id, container), *map(id, values)]


def memory_of(function: Any) -> bytes | None:
    """What a collate function keeps from call to call; None: it keeps something that cannot be
    read here. In the training process it would be kept for all workers together.
    """
    if isinstance(function, partial):
        return memory_of(function.func)
    if isinstance(function, FunctionType):
        return None if any(_variables_set_by(function)) else b""
    owner = function.__self__ if isinstance(function, MethodType) else function
    if isinstance(owner, Dataset):  # which may be big, and does not change in a worker as a rule
        return b""
    try:
        return pickle.dumps(vars(owner))
    except Exception:
        return None
