"""What a program keeps from sample to sample, and how it is set back."""

import copy
import ctypes
import dis
import io
import math
import queue
import re
import tarfile
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator
from functools import lru_cache
from mmap import mmap
from multiprocessing.sharedctypes import SynchronizedBase
from types import CellType, CodeType, FunctionType, MemberDescriptorType
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import torch

from dali_pipes.adapters.lazy.reach import (
    ARRAYS,
    CONTAINERS,
    SCALARS,
    Found,
    attributes_of,
    class_of,
    is_of_a_library,
    reach,
)

# entries of a container, and numbers of an array, that are copied before each batch: 1 µs for 1000.
# Of longer ones those whose entries the program's code may set
_MOST_COPIED, _MOST_CHANGING = 1000, 100_000
_BUFFERS = (bytearray, array)
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


def find_shared(**roots: Any) -> str | None:
    """The path to an object that other processes use as well, such as a queue; None: there is none
    that can be reached from these.
    """
    return next((found.path for found in _shared(roots)), None)


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

    @property
    def counts(self) -> dict[str, int | float]:
        """All numbers by the paths to them, also those in arrays of one and in containers that are
        not long: entries of long ones are data.
        """
        numbers = {
            f"{path}.{name}": each
            for path, own in self.numbers.items()
            for name, each in own.items()
        }
        for path, contents in (self.contents or {}).items():
            if isinstance(contents, ARRAYS):
                entries = {"": contents.item()} if math.prod(contents.shape) == 1 else {}
            elif not isinstance(contents, (dict, list)) or len(contents) > _MOST_COPIED:
                continue
            elif isinstance(contents, dict):
                entries = {f"[{key!r}]": each for key, each in contents.items()}
            else:
                entries = {f"[{at}]": each for at, each in enumerate(contents)}
            numbers |= {
                path + step: each for step, each in entries.items() if type(each) in (int, float)
            }
        return numbers


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
            elif isinstance(value, (*CONTAINERS, *_BUFFERS, *ARRAYS, io.IOBase)):
                if is_own and not _is_one_way(value):
                    self._things[path] = value
            elif _is_number(value):
                self._things[path] = value
            elif not is_of_a_library(class_of(value)):
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
            and isinstance(thing, (*CONTAINERS, *_BUFFERS, *ARRAYS))
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
        data = (*SCALARS, tuple, *CONTAINERS, *_BUFFERS, *ARRAYS, np.generic, PIL.Image.Image)
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
    return _entries_of(thing) if len(thing) <= most else len(thing)


def _entries_of(thing: Any) -> Any:
    """What is in a container or a buffer. Of a class of the program's own nothing is called: its
    methods may change it, as those of a cache do.
    """
    if isinstance(thing, OrderedDict):
        return {key: dict.__getitem__(thing, key) for key in OrderedDict.__iter__(thing)}
    if isinstance(thing, dict):
        return dict.copy(thing)
    if isinstance(thing, deque):
        return list(deque.__iter__(thing))
    if isinstance(thing, (list, set)):
        return (list if isinstance(thing, list) else set).copy(thing)  # type: ignore[arg-type]
    return copy.copy(thing)


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
    if isinstance(one, CONTAINERS):
        return type(one) is type(other) and _ids(one) == _ids(other)
    if isinstance(one, ARRAYS):
        return type(one) is type(other) and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


def _ids(container: Any) -> list[int]:
    values = container.values() if isinstance(container, dict) else ()
    return [*map(id, container), *map(id, values)]
