"""Where code stores something, read in its source: `stored_by`. Some samples are run, and what is
set to another value for one label in a thousand doesn't show in them.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.from_torch.recording.reach import content, is_of_program, reach
from dali_pipes.adapters.from_torch.recording.untouched import CONTAINERS, is_own, is_walked

SAMPLES = ("__getitem__", "__getitems__")
# methods of containers that change them
CHANGING = {
    *("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "add"),
    *("setdefault", "popitem", "discard", "appendleft", "extendleft", "popleft", "rotate", "fill"),
}
_UNKNOWN = object()


def stored_by(root: Any, methods: Iterable[str] = SAMPLES) -> set[tuple[int, str]]:
    """Where code stores something in objects, containers and variables of the program, as
    `Kept.changed_at` names places.

    What it stores in a variable of its own, or through one, isn't followed.

    Args:
        root: a function, or an object such as a data set.
        methods: those of the object that are called first.
    """
    names = set(methods)
    # what code names leads to further code
    while not (reached := reach([root], names)).names <= names:
        names |= reached.names

    places: set[tuple[int, str]] = set()
    for value in list(reached.objects.values()):
        with suppress(Exception):  # a proxy may fail whatever it is asked
            for function, owner in _functions_of(value, names):
                places.update(_stores_of(function, owner))
    return places


def _functions_of(value: Any, names: set[str]) -> Iterator[tuple[FunctionType, Any]]:
    """Yields a function, or the methods of an object that have these names; each with the object
    of which it is a method.
    """
    if isinstance(value, FunctionType):
        yield value, _UNKNOWN
    elif not isinstance(value, (type, ModuleType)):
        for kind in filter(is_of_program, type(value).__mro__):
            for name, member in vars(kind).items():
                if name in names and isinstance(member, FunctionType):
                    yield member, value


def _stores_of(function: FunctionType, owner: Any) -> Iterator[tuple[int, str]]:
    """Yields where a function stores something.

    Args:
        owner: the object of which it is a method.
    """
    if not is_of_program(function):
        return
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, ValueError, SyntaxError):  # of `exec`, or a part of a line
        return
    names = _Names(function, owner)
    declared = {
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Global, ast.Nonlocal))
        for name in node.names
    }

    for node in ast.walk(tree):
        is_store = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
        if isinstance(node, ast.Name) and is_store and node.id in declared:
            cell = names.cells.get(node.id)
            yield (id(function.__globals__), node.id) if cell is None else (id(cell), "")
        elif isinstance(node, ast.Attribute) and is_store:
            yield from _place(names.value_of(node.value), node.attr)
        elif isinstance(node, ast.Subscript) and is_store:
            yield from _place(names.value_of(node.value), _text(node.slice), is_item=True)
        elif isinstance(node, ast.Call):
            yield from _stores_of_call(node, names)


def _stores_of_call(node: ast.Call, names: "_Names") -> Iterator[tuple[int, str]]:
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr in CHANGING:
        yield from _place(names.value_of(function.value), "", is_item=True)
    elif isinstance(function, ast.Name) and function.id == "setattr" and len(node.args) == 3:
        yield from _place(names.value_of(node.args[0]), _text(node.args[1]))


class _Names:
    """What the names in a function are.

    Attributes:
        cells: the variables of its closure.
    """

    def __init__(self, function: FunctionType, owner: Any):
        code = function.__code__
        self.cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
        self._local = dict.fromkeys(code.co_varnames, _UNKNOWN)
        if code.co_argcount:
            self._local[code.co_varnames[0]] = owner
        self._globals = function.__globals__

    def value_of(self, node: ast.expr) -> Any:
        """What `a.b["c"]` is now; `_UNKNOWN` if it is a variable, or there is none."""
        if isinstance(node, ast.Name):
            if node.id in self._local:
                return self._local[node.id]
            cell = self.cells.get(node.id)
            return self._globals.get(node.id, _UNKNOWN) if cell is None else content(cell)
        if isinstance(node, ast.Attribute):
            # without properties, which may do anything
            value = self.value_of(node.value)
            if isinstance(value, ModuleType) and not is_own(value):
                return _UNKNOWN
            try:
                return inspect.getattr_static(value, node.attr)
            except AttributeError:
                return _UNKNOWN
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            value = self.value_of(node.value)
            return value.get(node.slice.value, _UNKNOWN) if type(value) is dict else _UNKNOWN
        return _UNKNOWN


def _text(node: ast.expr) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else ""


def _place(holder: Any, name: str, is_item: bool = False) -> Iterator[tuple[int, str]]:
    is_kept = isinstance(holder, (*CONTAINERS, np.ndarray, torch.Tensor)) or is_walked(holder)
    is_kept |= isinstance(holder, type) and is_of_program(holder)
    # into what is a library's, such as os.environ, anybody may store
    if holder is _UNKNOWN or not (is_kept or is_own(holder)):
        return
    if is_item or isinstance(holder, type):
        yield id(holder), name
    elif isinstance(space := getattr(holder, "__dict__", None), dict):
        yield id(space), name
