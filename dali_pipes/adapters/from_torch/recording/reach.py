"""What code may get at: `reach` walks from functions, objects and transforms to all that they hold
or name. So one knows what a step shares with its data set (`copy_data`), and what it reads that the
data set's code changes (`find_read`).
"""

import functools
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.from_torch.recording.untouched import (
    CONTAINERS,
    is_copied,
    is_own,
    is_walked,
    light_copy,
)

_SHORT = 64  # a longer list or dict holds paths or labels, and no objects
_MOST = 20_000  # objects that are looked into
_CALLED = ("__call__", "forward")  # methods that nobody names


@dataclass(slots=True)
class Reached:
    """What some values hold or name.

    Attributes:
        objects: all objects, by their identity.
        cells: the variables of closures, by their identity.
        names: all names, and texts that may be keys, in the code of their functions.
        globals: the module's variables that they name: (identity of the module's dict, name).
    """

    objects: dict[int, Any] = field(default_factory=dict)
    cells: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    globals: set[tuple[int, str]] = field(default_factory=set)


def reach(roots: Iterable[Any], names: set[str] | None = None) -> Reached:
    """Walks from some values to all that they hold or name.

    Args:
        names: the attributes and methods of the program's objects that are followed; None: all.
    """
    reached, waiting = Reached(), deque(roots)
    while waiting and len(reached.objects) < _MOST:
        value = waiting.popleft()
        if id(value) in reached.objects or isinstance(value, (str, bytes, int, float)):
            continue
        # kept beside its id, which no other object may get
        reached.objects[id(value)] = value
        if isinstance(value, ModuleType):
            continue
        with suppress(Exception):  # a proxy may fail whatever it is asked
            waiting.extend(_held_by(value, names, reached))
    return reached


def _held_by(value: Any, names: set[str] | None, reached: Reached) -> Iterator[Any]:
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from value if len(value) <= _SHORT else ()
    elif isinstance(value, dict):
        yield from value.values() if len(value) <= _SHORT else ()
    elif isinstance(value, FunctionType):
        yield from _held_by_function(value, reached)
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, (staticmethod, classmethod, property)):
        yield value.fget if isinstance(value, property) else value.__func__
    elif isinstance(value, type):
        yield from _members_of(value, names)
    elif isinstance(space := getattr(value, "__dict__", None), dict) and is_walked(value):
        reached.objects[id(space)] = space
        for kind in filter(is_of_program, type(value).__mro__):
            reached.objects[id(kind)] = kind
            yield from _members_of(kind, names)
        # the code of a library names its attributes itself
        if names is None or not is_of_program(type(value)):
            yield from space.values()
        else:
            yield from (each for name, each in space.items() if name in names)


def _members_of(kind: type, names: set[str] | None) -> Iterator[Any]:
    members = vars(kind).items() if is_of_program(kind) else ()
    yield from (each for name, each in members if names is None or name in names)


def _held_by_function(function: FunctionType, reached: Reached) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        reached.cells.add(id(cell))
        yield content(cell)
    # what a library's functions name is the library's
    if not is_of_program(function):
        return
    known, space = names_in(function.__code__), function.__globals__
    reached.names |= known
    for name in known & space.keys():
        reached.globals.add((id(space), name))
        yield space[name]


def names_in(code: CodeType) -> set[str]:
    """All names, and texts that may be keys, in a function's code and the code in it."""
    texts = {each for each in code.co_consts if isinstance(each, str)}
    inner = [names_in(each) for each in code.co_consts if isinstance(each, CodeType)]
    return texts.union(code.co_names, *inner)


def content(cell: CellType) -> Any:
    """The value of a variable of a closure; the cell itself if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def is_of_program(value: Any) -> bool:
    """Whether a class or a function is one of the user's program."""
    return is_own(sys.modules.get(value.__module__))


def copy_data(dataset: Any) -> Any:
    """A copy of a data set, as `light_copy` makes it, but what its transforms and functions hold or
    name is shared with them, since they are not copied: what the data set sets in one of them must
    reach it.
    """
    roots: list[Any] = []
    seen: dict[int, Any] = {}

    # what light_copy does not copy
    def walk(value: Any) -> None:
        if id(value) in seen or len(seen) > _MOST:
            return
        seen[id(value)] = value
        if is_copied(value):
            roots.append(type(value))
            for each in list(vars(value).values()):
                walk(each)
        elif isinstance(value, (list, dict)):
            for each in list(value.values() if isinstance(value, dict) else value)[: _SHORT + 1]:
                walk(each)
        else:
            roots.append(value)

    walk(dataset)
    # only what Kept gives back what it held
    shared = {
        at: each
        for at, each in reach(roots).objects.items()
        if type(each) in (*CONTAINERS, np.ndarray, torch.Tensor) or is_walked(each)
    }
    return light_copy(dataset, done=shared)


def find_read(steps: Iterable[Any], changed: set[tuple[int, str]]) -> str | None:
    """The name of something that is changed and that steps read; None: there is none.

    Args:
        changed: as `Kept.changed_at` returns it.
    """
    steps, names = list(steps), set(_CALLED)
    # what code names leads to further code
    while not (reached := reach(steps, names)).names <= names:
        names |= reached.names

    modules = [each for each in reached.objects.values() if isinstance(each, ModuleType)]
    holders = reached.objects.keys() | reached.cells | {id(vars(each)) for each in modules}
    for at, name in changed:
        if (at, name) in reached.globals or (at in holders and (not name or name in names)):
            return name or "a variable of a function"
    return None
