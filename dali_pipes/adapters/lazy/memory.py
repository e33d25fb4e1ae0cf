"""What a program keeps from sample to sample: its objects, and what is in them."""

import copy
import ctypes
import dis
import io
import queue
import random
import re
import sys
import tarfile
from array import array
from collections import deque
from collections.abc import Iterator
from functools import lru_cache, partial
from mmap import mmap
from multiprocessing.sharedctypes import SynchronizedBase
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import torch

_MOST_NODES, _DEEPEST, _LONGEST = 5000, 8, 64  # of what is searched; longer lists hold data
# entries of a container, and numbers of an array, that are copied before each batch: 1 µs for 1000.
# Of longer ones those whose entries the program's code may set
_MOST_COPIED, _MOST_CHANGING = 1000, 100_000
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")
# libraries whose data sets and collate functions are none of the program's own
_KNOWN = frozenset(
    {
        *("torch", "torchvision", "torchaudio", "torchdata", "timm", "datasets", "webdataset"),
        *("numpy", "PIL", "cv2", "albumentations", "albucore", "kornia", "dali_pipes"),
        *("lightning", "pytorch_lightning", "accelerate", "transformers", "ray"),
    }
)
_SCALARS = (str, bytes, int, float, complex, type(None))
_ARRAYS = (torch.Tensor, np.ndarray)
_BUFFERS = (bytearray, array)
_CONTAINERS = (dict, list, set, deque)
# by which code changes what is in a container
_SETS_ENTRIES = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR"})
_CHANGES = frozenset(
    {
        *("add", "add_", "append", "appendleft", "clear", "copy_", "discard", "extend", "fill"),
        *("fill_", "insert", "move_to_end", "pop", "popitem", "popleft", "put", "remove"),
        *("reverse", "rotate", "setdefault", "sort", "subtract", "update"),
    }
)
_NOTHING = object()
_OPAQUE = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


def find_shared(**roots: Any) -> str | None:
    """The path to an object that other processes use as well, such as a queue; None: there is none
    that can be reached from these.
    """
    return next((found.path for found in _shared(roots)), None)


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
        if id(value) in known or isinstance(value, _SCALARS):
            continue
        known.add(id(value))
        yield found
        if depth < _DEEPEST and not isinstance(value, (*_OPAQUE, *_ARRAYS)):
            is_own = found.is_own
            if not isinstance(value, (*_CONTAINERS, tuple, partial, MethodType)):
                is_own = not is_of_a_library(_class_of(value))
            inside = type(value).__module__.startswith("albumentations.")
            todo.extend(
                (Found(each, found.path + step, is_own, inside), depth + 1)
                for step, each in _parts_of(value)
            )


def _shared(roots: dict[str, Any]) -> Iterator[Found]:
    values, changing = list(reach(roots)), set[str]()
    for found in values:
        if isinstance(found.value, FunctionType):
            changing.update(_names_of_changing(found.value.__code__, in_place=True))
    for found in values:
        module, names = type(found.value).__module__, _WORDS.findall(found.path)
        is_of_processes = module.startswith("multiprocessing.") and not module.endswith(".context")
        is_changed = _is_in_shared_memory(found.value) and not changing.isdisjoint(names)
        if is_of_processes or is_changed:
            yield found


def _is_in_shared_memory(value: Any) -> bool:
    """Whether it is a tensor or an array in memory that processes or files share."""
    if isinstance(value, torch.Tensor):
        is_here = type(value) is torch.Tensor and value.device.type == "cpu"
        return is_here and bool(value.is_shared())  # type: ignore[no-untyped-call]
    if not isinstance(value, np.ndarray) or not value.flags.writeable:
        return False
    base: Any = value
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return isinstance(base, (mmap, ctypes.Array, ctypes._SimpleCData))


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
    return getattr(value, "__dict__", {}) | slots


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
    if name.partition(".")[0] in _OWN_PACKAGES:
        return False
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


def _note_own_package(root: Any) -> None:
    """Notes the package of a data set or collate function, which may be installed."""
    while type(root).__module__.startswith("torch.utils.data."):  # a part of another one
        inner = getattr(root, "dataset", None) or next(iter(getattr(root, "datasets", ())), None)
        if inner is None:
            return
        root = inner
    kind = root if isinstance(root, (type, FunctionType)) else type(root)
    package = str(kind.__module__).partition(".")[0]
    if package not in _KNOWN and package not in sys.stdlib_module_names:
        _OWN_PACKAGES.add(package)


def look(**roots: Any) -> dict[str, Any]:
    """What a program has by name: numbers and texts themselves, and who all else is."""
    found = dict[str, Any]()
    for value, path, _, _ in reach(roots):
        found[path] = id(value)
        if not isinstance(value, (type, FunctionType, ModuleType, *_ARRAYS)):
            for name, each in attributes_of(value).items():
                found[f"{path}.{name}"] = each if isinstance(each, _SCALARS) else id(each)
    return found


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
        return Kept, (self.numbers, None)

    @property
    def numbers(self) -> dict[str, dict[str, Any]]:
        """The names that are numbers."""
        names = {
            path: {name: each for name, each in own.items() if type(each) in (int, float)}
            for path, own in self.names.items()
        }
        return {path: own for path, own in names.items() if own}


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
        changing = set[str]()  # names in functions that change entries of something
        for value, path, is_own, _ in reach(roots):
            if isinstance(value, FunctionType):
                changing.update(_names_of_changing(value.__code__))
                for name, holder in _variables_set_by(value):
                    self._spaces[f"{path}:{value.__qualname__}:{name}"] = _Space(holder, name)
            elif isinstance(value, (*_CONTAINERS, *_BUFFERS, *_ARRAYS, io.IOBase)):
                if is_own and not _is_one_way(value):
                    self._things[path] = value
            elif _is_number(value):
                self._things[path] = value
            elif not is_of_a_library(_class_of(value)):
                self._spaces[path] = _Space(value)
        self._most = {
            path: _MOST_CHANGING if changing.intersection(_WORDS.findall(path)) else _MOST_COPIED
            for path in self._things
        }

    @property
    def what_may_have_changed(self) -> list[str]:
        """The paths to what `restore` knows nothing of: what the program may change and is too long
        to be copied, and what other processes use as well.
        """
        shared = [found.path for found in _shared(self._roots) if not _is_number(found.value)]
        return shared + [
            path
            for path, thing in self._things.items()
            if self._most[path] == _MOST_CHANGING
            and isinstance(thing, (*_CONTAINERS, *_BUFFERS, *_ARRAYS))
            and type(_contents_of(thing, _MOST_CHANGING)) is int
        ]

    def read(self) -> Kept:
        names = {path: space.read() for path, space in self._spaces.items()}
        most = self._most
        things = self._things.items()
        return Kept(names, {path: _contents_of(each, most[path]) for path, each in things})

    def has_changed(self, kept: Kept) -> bool:
        """Whether there is something else now."""
        now = self.read()
        for path, names in now.names.items():
            before = kept.names.get(path, {})
            if names.keys() != before.keys():
                return True
            if any(before[name] is not value for name, value in names.items()):
                return True
        before, contents = kept.contents or {}, now.contents or {}
        return any(not _is_same(each, before.get(path)) for path, each in contents.items())

    def restore(self, kept: Kept, *roots: str) -> None:
        """Sets all back.

        Args:
            roots: what will be asked once more.

        Raises:
            RuntimeError: something there cannot be set back.
        """
        for path, contents in (kept.contents or {}).items():
            if not _set_contents(self._things[path], contents, self._most[path]):
                raise _cannot_be_set_back(path)
        for path, before in kept.names.items():
            if path not in self._spaces:
                raise _cannot_be_set_back(path)
            space = self._spaces[path]
            now = space.read()
            for name in now.keys() | before.keys():
                if name in before:
                    if before[name] is not now.get(name, _NOTHING):
                        space.set(name, before[name])
                elif kept.contents is not None:  # else it is not known
                    space.forget(name)
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
            names = attributes_of(self._holder)
        data = (*_SCALARS, tuple, *_CONTAINERS, *_BUFFERS, *_ARRAYS, np.generic, PIL.Image.Image)
        return {
            name: each
            for name, each in names.items()
            if isinstance(each, data) or _is_one_way(each)
        }

    def set(self, name: str, value: Any) -> None:
        if (own := self._dict) is None or _is_slot(self._holder, name):
            setattr(self._holder, name, value)
        else:
            own[name] = value

    def forget(self, name: str) -> None:
        if (own := self._dict) is None or _is_slot(self._holder, name):
            delattr(self._holder, name)
        else:
            del own[name]

    @property
    def _dict(self) -> dict[str, Any] | None:
        """Where its names are, if they can be set there."""
        if self._only is not None:
            return self._holder
        is_plain = not isinstance(self._holder, (type, CellType))
        return getattr(self._holder, "__dict__", None) if is_plain else None


def _is_slot(holder: Any, name: str) -> bool:
    return isinstance(getattr(type(holder), name, None), MemberDescriptorType)


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


def _is_number(value: Any) -> bool:
    """Whether it is a number, or an array of them, that processes share."""
    return isinstance(value, (SynchronizedBase, ctypes.Array, ctypes._SimpleCData))


def _is_one_way(value: Any) -> bool:
    """Whether it gives one thing after the other, and cannot be set back."""
    if isinstance(value, io.IOBase):
        return not value.closed and value.readable() and not value.seekable()
    if isinstance(value, tarfile.TarFile):
        return isinstance(value.fileobj, tarfile._Stream)  # type: ignore[attr-defined]
    return hasattr(type(value), "__next__") or isinstance(value, (queue.Queue, queue.SimpleQueue))


_WORDS = re.compile(r"\w+")


@lru_cache
def _names_of_changing(code: CodeType, in_place: bool = False) -> frozenset[str]:
    """The names in code that changes entries of something; empty: it changes none.

    Args:
        in_place: also by `+=` and the like.
    """
    instructions = list(dis.get_instructions(code))
    steps = {step.opname for step in instructions}
    changes = not (_SETS_ENTRIES.isdisjoint(steps) and _CHANGES.isdisjoint(code.co_names))
    if in_place and not changes:
        changes = any(
            step.opname == "BINARY_OP" and step.argrepr.endswith("=") for step in instructions
        )
    names = {*code.co_names, *code.co_freevars} if changes else set[str]()
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(names.union(*[_names_of_changing(each, in_place) for each in inner]))


def _contents_of(thing: Any, most: int) -> Any:
    """What is in a container, an array or a file that may change; of one that is longer than `most`
    a number, which may tell whether it has.
    """
    if isinstance(thing, io.IOBase):
        try:
            return thing.tell()
        except (OSError, ValueError):  # a text of which some lines were taken, or a closed file
            return None
    if _is_number(thing):
        return bytes(thing.get_obj() if isinstance(thing, SynchronizedBase) else thing)
    if isinstance(thing, torch.Tensor):
        if "_lazy" in vars(thing) or thing.numel() > most:
            return 0 if thing.is_inference() else thing._version
        return thing.detach().clone()
    if isinstance(thing, np.ndarray):
        return thing.copy() if type(thing) is np.ndarray and thing.size <= most else 0
    return copy.copy(thing) if len(thing) <= most else len(thing)


def _set_contents(thing: Any, before: Any, most: int) -> bool:
    """Sets it back; False: that is impossible."""
    now = _contents_of(thing, most)
    if isinstance(thing, io.IOBase) and before is not None and now is not None:
        thing.seek(before)
    elif _is_number(thing):  # another process may have changed it, too
        return bool(now == before)
    elif _is_in_shared_memory(thing) and not isinstance(before, int):
        return bool(np.array_equal(now, before))
    elif isinstance(before, int) or isinstance(now, int) or before is None:
        return type(now) is type(before) and now == before
    elif isinstance(thing, torch.Tensor):
        if not torch.equal(now, before):
            thing.detach().copy_(before)
    elif isinstance(thing, np.ndarray):
        if thing.flags.writeable:
            thing[...] = before
    elif isinstance(thing, _BUFFERS):
        thing[:] = before
    elif _ids(now) != _ids(before):
        thing.clear()
        getattr(thing, "update" if isinstance(thing, (dict, set)) else "extend")(before)
    return True


def _is_same(one: Any, other: Any) -> bool:
    """Whether two of `_contents_of` are."""
    if isinstance(one, _CONTAINERS):
        return type(one) is type(other) and _ids(one) == _ids(other)
    if isinstance(one, _ARRAYS):
        return type(one) is type(other) and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _ids(container: Any) -> list[int]:
    values = container.values() if isinstance(container, dict) else ()
    return [*map(id, container), *map(id, values)]
