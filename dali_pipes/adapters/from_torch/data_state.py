"""A hash of what a data set is: its state, and the code that it runs (`hash_of`).

The state is what a pickle of it holds. The code is that of its class and of all functions that this
one can call, as far as they are the user's own; of libraries it is their version. Lines that a
program has elsewhere change nothing.
"""

import dis
import hashlib
import os
import pickle
import platform
import sys
from collections.abc import Iterator
from functools import _lru_cache_wrapper, cached_property
from itertools import islice
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    ModuleType,
    NoneType,
)
from typing import Any

import torch

from dali_pipes.adapters.from_torch.recording.keys import contents
from dali_pipes.adapters.from_torch.recording.objects import is_installed
from dali_pipes.adapters.transforms.reading import is_of

# levels of objects whose attributes may be paths, and paths of a list that are looked at
_DEEPEST, _MOST = 4, 64
_MOST_FILES = 8  # of a folder that a library may open as a whole, such as one of LMDB
# what a class has besides that which its author wrote
_MADE_BY_PYTHON = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "_abc_impl"),
    *("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__orig_bases__"),
    *("__parameters__", "__firstlineno__", "__static_attributes__"),
}


def hash_of(dataset: Any, *more: Any) -> str | None:
    """A hash that is equal in another process for an equal data set; None: it cannot be told, such
    as for one that has an open file.

    Args:
        more: further values that it depends on.
    """
    hasher = _Hasher()
    try:
        hasher.add((dataset, more, platform.python_version()))
        hasher.add([_stamps(path) for path in sorted(set(_paths_in(dataset)))])
    # whatever a __getstate__ or __reduce__ of the user's own raises
    except Exception:
        return None
    return hasher.hexdigest()


class _Hasher(pickle.Pickler):
    """A pickler whose output is hashed. Functions and classes are their code."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=12)
        super().__init__(self, protocol=5)
        self._done: set[Any] = set()
        self._waiting: list[Any] = []

    def write(self, encoded: Any) -> int:
        self._hash.update(encoded)
        return len(encoded)

    def add(self, value: Any) -> None:
        self.dump(value)
        # code that was met on the way, whose values may lead to further code
        while self._waiting:
            self.dump(self._waiting.pop())

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def persistent_id(self, value: Any) -> Any:
        # the order of a set differs from process to process
        if type(value) in (set, frozenset):
            return type(value).__name__, sorted(map(repr, value))
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ModuleType):
            return _as_is("module", value.__name__, _version(value.__name__))
        if isinstance(value, type):
            return self._class(value)
        if is_of(value, "datasets", "Dataset"):
            # its fingerprint may be a random number
            state = {name: each for name, each in vars(value).items() if name != "_fingerprint"}
            files = [_stamps(each["filename"]) for each in value.cache_files]
            return _as_is("datasets.Dataset", state, files)
        # functools.wraps, partial and lru_cache keep the function in an attribute or a cell
        if isinstance(inner := getattr(value, "__wrapped__", None), FunctionType):
            self._function(inner)
        if isinstance(value, FunctionType):
            return self._function(value)
        # a method in C of an object, such as a dict's `get`, is pickled with that object
        if isinstance(value, BuiltinFunctionType):
            is_free = isinstance(value.__self__, (ModuleType, type, NoneType))
            return _as_is("function", _name(value)) if is_free else NotImplemented
        if isinstance(value, _lru_cache_wrapper):
            return _as_is("cached", _name(value), value.cache_parameters())
        if type(value) is torch.Tensor:
            plain = value.detach().cpu()
            plain = plain.float() if plain.dtype is torch.bfloat16 else plain
            return _as_is(str(value.dtype), tuple(value.shape), plain.numpy().tobytes())
        return NotImplemented

    def _class(self, kind: type) -> Any:
        name = kind.__module__, kind.__qualname__
        if kind.__module__ == "builtins":
            return NotImplemented
        if is_installed(kind.__module__):
            return _as_is("class", *name, _version(kind.__module__))
        if kind not in self._done:
            self._done.add(kind)
            values = [
                (key, _unwrap(each))
                for key, each in vars(kind).items()
                if key not in _MADE_BY_PYTHON
            ]
            self._waiting.append(("class", name, kind.__bases__, values))
        return _as_is("class", *name)

    def _function(self, function: FunctionType) -> Any:
        name = str(function.__module__), function.__qualname__
        if is_installed(name[0]):
            return _as_is("function", *name, _version(name[0]))
        if function not in self._done:
            self._done.add(function)
            cells = [contents(cell) for cell in function.__closure__ or ()]
            values = [cells, function.__defaults__, function.__kwdefaults__]
            code = function.__code__
            named = list(_globals(code, function.__globals__))
            self._waiting.append(("function", name, _code(code), values, named))
        return _as_is("function", *name)


def _as_is(*values: Any) -> Any:
    """What `reducer_override` returns for a value that is hashed as these."""
    return tuple, (values,)


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _unwrap(value: Any) -> Any:
    """A value of a class, with functions in place of what they are wrapped in."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, property):
        return [value.fget, value.fset]
    if isinstance(value, cached_property):
        return value.func
    # a descriptor in C, of __slots__
    return "slot" if isinstance(value, MemberDescriptorType) else value


def _code(code: CodeType) -> Any:
    """What a code object does, without the places of its lines."""
    constants = [_code(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return (code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars)


def _globals(code: CodeType, space: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the globals that a function may use, and what it may use of the user's modules."""
    codes = list(_codes(code))
    used = [step for each in codes for step in dis.get_instructions(each)]
    names = {step.argval for step in used if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    values = {name: space.get(name) for name in names}
    # modules that the function imports itself
    imported = {step.argval for step in used if step.opname == "IMPORT_NAME"}
    values |= {name: sys.modules.get(name) for name in imported}

    attributes = {name for each in codes for name in each.co_names}
    for name, value in sorted(values.items()):
        yield name, value
        if isinstance(value, ModuleType) and not is_installed(value.__name__):
            yield from _attributes(value, attributes, set())


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yields a code object and those inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _attributes(module: ModuleType, names: set[str], done: set[str]) -> Iterator[tuple[str, Any]]:
    # names of attributes are among the names of the code, so `a.b.c` names b and c
    done.add(module.__name__)
    for name in sorted(names & set(vars(module))):
        value = vars(module)[name]
        yield name, value
        is_own = isinstance(value, ModuleType) and not is_installed(value.__name__)
        if is_own and value.__name__ not in done:
            yield from _attributes(value, names, done)


def _version(module: str) -> str:
    """The version of the package that a module is of."""
    package = sys.modules.get(module.partition(".")[0])
    return str(getattr(package, "__version__", ""))


def _paths_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Yields the paths among the attributes of an object and of those inside it: files that a
    library opens in C, which Python does not see.
    """
    if isinstance(value, (str, Path)):
        yield str(value)
    elif depth < _DEEPEST and isinstance(value, (list, tuple)) and len(value) <= _MOST:
        for each in value:
            yield from _paths_in(each, depth + 1)
    elif depth < _DEEPEST and isinstance(values := getattr(value, "__dict__", None), dict):
        for each in list(values.values()):
            yield from _paths_in(each, depth + 1)


def _stamps(path: str) -> Any:
    """Size and modification time of a file, or of the few files in a folder."""
    try:
        files = [path]
        if Path(path).is_dir():
            with os.scandir(path) as entries:
                inside = list(islice(entries, _MOST_FILES + 1))
            # a folder of images; those that are opened are noted elsewhere
            if len(inside) > _MOST_FILES:
                return None
            files = sorted(each.path for each in inside if each.is_file())
        stats = [os.stat(each) for each in files]
    except (OSError, ValueError):  # a text that is no path, and may have a NUL
        return None
    return [(each.st_size, each.st_mtime_ns) for each in stats]
