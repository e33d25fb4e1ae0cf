"""What code may get at: `reach` walks from functions, objects and transforms to all that they hold
or name. So one knows what a step shares with its data set (`copy_data`), and what it reads that the
data set's code changes (`find_read`).
"""

import dis
import functools
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from dali_pipes.adapters.from_torch.recording.kept import Kept
from dali_pipes.adapters.from_torch.recording.light_copy import light_copy
from dali_pipes.adapters.from_torch.recording.objects import (
    ATOMS,
    CONTAINERS,
    attributes_of,
    content,
    is_a,
    is_array,
    is_copied,
    is_namespace,
    is_own,
    is_walked,
    referent,
    slots_of,
)

_SHORT = 64  # a longer list or dict holds paths or labels, and no objects
_MOST = 20_000  # objects and containers that are looked into
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_CALLED = ("__call__", "forward")  # methods that nobody names


@dataclass(slots=True)
class Reached:
    """What some values hold or name.

    Attributes:
        objects: all objects, by their identity.
        cells: the variables of closures, by their identity.
        names: all names, and texts that may be keys, in the code of their functions.
        globals: the module's variables that they name: (identity of the module's dict, name).
        is_full: whether they hold more than is looked into.
    """

    objects: dict[int, Any] = field(default_factory=dict)
    cells: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    globals: set[tuple[int, str]] = field(default_factory=set)
    is_full: bool = False


def reach(roots: Iterable[Any], names: set[str] | None = None) -> Reached:
    """Walks from some values to all that they hold or name.

    Args:
        names: the attributes and methods of the program's objects that are followed; None: all.
    """
    reached, waiting = Reached(), deque(roots)
    while waiting:
        value = waiting.popleft()
        # numbers and texts are not counted: a table of boxes has more of them than of objects
        if id(value) in reached.objects or is_a(value, ATOMS):
            continue
        if len(reached.objects) >= _MOST:
            reached.is_full = True
            break
        # kept beside its id, which no other object may get
        reached.objects[id(value)] = value
        if is_a(value, ModuleType):
            continue
        with suppress(Exception):  # a proxy may fail whatever it is asked
            waiting.extend(_held_by(value, names, reached))
    return reached


def _held_by(value: Any, names: set[str] | None, reached: Reached) -> Iterator[Any]:
    if is_a(value, (list, tuple, set, frozenset, deque)):
        yield from value if len(value) <= _SHORT else ()
    elif is_a(value, dict):
        yield from value.values() if len(value) <= _SHORT else ()
    elif is_a(value, FunctionType):
        yield from _held_by_function(value, reached)
    elif is_a(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif is_a(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif is_a(value, property):
        yield from (value.fget, value.fset)
    elif is_a(value, (staticmethod, classmethod)):
        yield value.__func__
    elif is_a(value, type):
        for kind in value.__mro__:
            yield from _members_of(kind, names)
    elif (inner := referent(value)) is not None:
        yield inner

    # a dict of a class of the user's own has attributes too
    if is_walked(value):
        yield from _held_by_object(value, names, reached)


def _held_by_object(value: Any, names: set[str] | None, reached: Reached) -> Iterator[Any]:
    space = attributes_of(value)
    if space is not None:
        reached.objects[id(space)] = space
    for kind in filter(is_of_program, type(value).__mro__):
        reached.objects[id(kind)] = kind
        yield from _members_of(kind, names)
    # the code of a library names its attributes itself; that of a namespace is the program's
    is_followed = names is None or not (is_of_program(type(value)) or is_namespace(value))
    for name, each in ((space or {}) | slots_of(value)).items():
        if is_followed or name in (names or ()):
            yield each


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
    code, space = function.__code__, function.__globals__
    known, loaded = names_in(code), _globals_in(code)
    reached.names |= known
    # `globals()[name]`
    for name in (known if "globals" in loaded else loaded) & space.keys():
        value = space[name]
        reached.globals.add((id(space), name))
        yield value
        if type(value) is ModuleType and is_own(value):
            yield from (vars(value)[each] for each in known & vars(value).keys())


@functools.lru_cache(4096)
def _globals_in(code: CodeType) -> frozenset[str]:
    """The variables of its module that a function's code and the code in it read: attributes may
    have the same names.
    """
    loaded = {each.argval for each in dis.get_instructions(code) if each.opname in _LOADS}
    inner = [_globals_in(each) for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(loaded.union(*inner))


def names_in(code: CodeType) -> set[str]:
    """All names, and texts that may be keys, in a function's code and the code in it."""
    texts = {each for each in code.co_consts if isinstance(each, str)}
    inner = [names_in(each) for each in code.co_consts if isinstance(each, CodeType)]
    return texts.union(code.co_names, *inner)


def is_of_program(value: Any) -> bool:
    """Whether a class or a function is one of the user's program."""
    name = value.__module__
    return isinstance(name, str) and is_own(sys.modules.get(name))


def copy_data(dataset: Any, kept: Kept) -> tuple[Any, bool]:
    """A copy of a data set, as `light_copy` makes it, but what its transforms and functions hold or
    name is shared with them, since they are not copied: what the data set sets in one of them must
    reach it. Returns the copy, and whether it shares an object of the data set's own.

    Args:
        kept: gives back what was shared; nothing else is.
    """
    copied, roots, is_full = _parts_of(dataset)
    reached = reach(roots)
    # what is not known to be apart counts as shared
    shared = dict(kept.held)
    if not (is_full or reached.is_full):
        shared = {at: each for at, each in shared.items() if at in reached.objects}
    done = dict(shared)
    for at in copied.keys() & shared.keys():
        _copy_inside(shared[at], done)
    shares_objects = any(is_copied(copied[at]) for at in copied.keys() & shared.keys())
    return light_copy(dataset, done=done), shares_objects


def _parts_of(dataset: Any) -> tuple[dict[int, Any], list[Any], bool]:
    """Returns what `light_copy` copies of a data set, by its identity; what it does not copy and
    the classes of what it copies; and whether there is more than is looked into.
    """
    copied: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    roots: list[Any] = []
    waiting = deque([dataset])
    while waiting:
        value = waiting.popleft()
        if id(value) in seen or is_a(value, ATOMS):
            continue
        if len(seen) >= _MOST:
            return copied, roots, True
        seen[id(value)] = value
        if type(value) in CONTAINERS:
            copied[id(value)] = value
            # the members of a long list and of a set are not copied; rows of a table are alike
            members = list(value.values() if isinstance(value, dict) else value)
            is_entered = isinstance(value, (list, dict)) and len(members) <= _SHORT
            (waiting if is_entered else roots).extend(members[: _SHORT + 1])
        elif is_array(value):
            copied[id(value)] = value
        elif is_copied(value):
            copied[id(value)] = value
            roots += filter(is_of_program, type(value).__mro__)
            waiting.extend(list((attributes_of(value) or {}).values()))
        else:
            roots.append(value)
    return copied, roots, False


def _copy_inside(value: Any, done: dict[int, Any]) -> None:
    """Puts copies into a shared object, until it is given back what it held, of what nobody gives
    back: large arrays and objects of other packages.
    """
    space = value if type(value) in (list, dict) else attributes_of(value)
    if space is None or (space is value and len(space) > _SHORT):
        return
    for name, each in list(enumerate(space) if isinstance(space, list) else space.items()):
        if id(each) not in done and not is_a(each, ATOMS):
            fresh = light_copy(each, 1, done)
            if fresh is not each:
                space[name] = fresh


def find_read(steps: Iterable[Any], changed: set[tuple[int, str]]) -> str | None:
    """The name of something that is changed and that steps read; None: there is none.

    Args:
        changed: as `Kept.changed_at` returns it.
    """
    steps, names = list(steps), set(_CALLED)
    # what code names leads to further code
    while not (reached := reach(steps, names)).names <= names:
        names |= reached.names

    # what is not known to be apart counts as read
    if reached.is_full and changed:
        name = next((name for _, name in sorted(changed) if name), "a variable of a function")
        return f"more than {_MOST:,} objects, perhaps {name}"

    modules = [each for each in reached.objects.values() if is_a(each, ModuleType)]
    holders = reached.objects.keys() | reached.cells | {id(vars(each)) for each in modules}
    spaces = {at for at, _ in reached.globals}
    for at, name in changed:
        is_read = (at, name) in reached.globals or (not name and at in spaces)
        if is_read or (at in holders and (not name or name in names)):
            return name or "a variable of a function"
    return None
