"""Where code stores something, read in its source: `stored_by`. Some samples are run, and what is
set to another value for one label in a thousand doesn't show in them.
"""

import ast
import functools
import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.from_torch.recording.objects import (
    CONTAINERS,
    attributes_of,
    content,
    is_own,
    is_walked,
)
from dali_pipes.adapters.from_torch.recording.reach import is_of_program, reach

SAMPLES = ("__getitem__", "__getitems__")
# methods of containers that change them
CHANGING = {
    *("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "update", "add"),
    *("setdefault", "popitem", "discard", "appendleft", "extendleft", "popleft", "rotate", "fill"),
}
_SHORT = 64  # a longer list or dict holds paths or labels, and no objects
_DEEPEST = 4  # calls of functions one in another


def stored_by(root: Any, methods: Iterable[str] = SAMPLES) -> set[tuple[int, str]]:
    """Where code stores something in objects, containers and variables of the program, as
    `Kept.changed_at` names places.

    Variables of a function are followed as far as they are assigned from what is known, and
    arguments into functions that are called by their names.

    Args:
        root: a function, or an object such as a data set.
        methods: those of the object that are called first.
    """
    names = {*methods, "__call__"}
    # what code names leads to further code
    while not (reached := reach([root], names)).names <= names:
        names |= reached.names

    places: set[tuple[int, str]] = set()
    done: set[Any] = set()
    for value in list(reached.objects.values()):
        with suppress(Exception):  # a proxy may fail whatever it is asked
            for function, owner in _functions_of(value, names):
                places.update(_stores_of(function, [[owner]], done))
    return places


def _functions_of(value: Any, names: set[str]) -> Iterator[tuple[FunctionType, Any]]:
    """Yields a function, or the methods of an object that have these names; each with the object
    of which it is a method.
    """
    if isinstance(value, FunctionType):
        yield value, None
    elif not isinstance(value, (type, ModuleType)):
        for kind in filter(is_of_program, type(value).__mro__):
            for name, member in vars(kind).items():
                if name in names and isinstance(member, FunctionType):
                    yield member, value


def _stores_of(
    function: FunctionType, given: Sequence[Sequence[Any]], done: set[Any], depth: int = 0
) -> Iterator[tuple[int, str]]:
    """Yields where a function stores something.

    Args:
        given: what each of its first arguments may be, such as the object of which it is a method.
        done: which functions were read, with which arguments.
    """
    # the objects are kept by whoever holds them
    key = function, tuple(tuple(map(id, each)) for each in given)
    if key in done or depth > _DEEPEST or not is_of_program(function):
        return
    done.add(key)
    for tree in _code_of(function):
        yield from _stores_in(tree, function, given, done, depth)


def _stores_in(
    tree: ast.AST,
    function: FunctionType,
    given: Sequence[Sequence[Any]],
    done: set[Any],
    depth: int,
) -> Iterator[tuple[int, str]]:
    names = _Names(function, given, tree)
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
            yield from _places(names.values_of(node.value), node.attr)
        elif isinstance(node, ast.Subscript) and is_store:
            yield from _places(names.values_of(node.value), _text(node.slice), is_item=True)
        elif isinstance(node, ast.Call):
            yield from _stores_of_call(node, names)
            for called, arguments in names.called_by(node):
                yield from _stores_of(called, arguments, done, depth + 1)


def _code_of(function: FunctionType) -> list[ast.AST]:
    """The code of a function; of a lambda all those that begin in its line."""
    try:
        lines, _ = inspect.findsource(function)
        found = _functions_by_line("".join(lines))
    except (OSError, TypeError, ValueError, SyntaxError):  # of `exec`
        return []
    return found.get(function.__code__.co_firstlineno, [])


@functools.lru_cache(64)
def _functions_by_line(source: str) -> dict[int, list[ast.AST]]:
    found: dict[int, list[ast.AST]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            decorators = getattr(node, "decorator_list", [])
            first = min(each.lineno for each in (node, *decorators))
            found.setdefault(first, []).append(node)
    return found


def _stores_of_call(node: ast.Call, names: "_Names") -> Iterator[tuple[int, str]]:
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr in CHANGING:
        # `update(a=1)`
        for name in [each.arg or "" for each in node.keywords] or [""]:
            yield from _places(names.values_of(function.value), name, is_item=True)
    elif isinstance(function, ast.Name) and function.id == "setattr" and len(node.args) == 3:
        yield from _places(names.values_of(node.args[0]), _text(node.args[1]))


class _Names:
    """What the names in a function may be.

    Attributes:
        cells: the variables of its closure.
    """

    def __init__(self, function: FunctionType, given: Sequence[Sequence[Any]], tree: ast.AST):
        code = function.__code__
        self.cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
        self._local: dict[str, list[Any]] = {each: [] for each in code.co_varnames}
        self._globals = function.__globals__
        self._assigned: dict[str, list[ast.expr]] = {}
        self._members_of: dict[str, list[ast.expr]] = {}
        self._asked: set[str] = set()

        arguments = code.co_varnames[: code.co_argcount]
        for name, values in zip(arguments, given, strict=False):
            self._local[name] += values
        for name, value in zip(arguments[::-1], (function.__defaults__ or ())[::-1], strict=False):
            self._local[name].append(value)
        for name, value in (function.__kwdefaults__ or {}).items():
            self._local[name].append(value)
        for node in ast.walk(tree):
            self._note(node)

    def _note(self, node: ast.AST) -> None:
        """Notes what a statement assigns to variables."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._assign(node.optional_vars, node.context_expr)
        elif isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.target, ast.Name):
            self._members_of.setdefault(node.target.id, []).append(node.iter)
        elif isinstance(node, ast.Import):
            for each in node.names:
                name = each.asname or each.name.partition(".")[0]
                module = sys.modules.get(each.name if each.asname else name)
                self._local.setdefault(name, []).append(module)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = sys.modules.get(node.module or "")
            for each in node.names:
                value = getattr(module, each.name, None)
                self._local.setdefault(each.asname or each.name, []).append(value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._assigned.setdefault(target.id, []).append(value)
        lists = (ast.Tuple, ast.List)
        if isinstance(target, lists) and isinstance(value, lists):
            for one, other in zip(target.elts, value.elts, strict=False):
                self._assign(one, other)

    def values_of(self, node: ast.expr) -> list[Any]:
        """What `a.b["c"]` may be now; empty if nothing is known of it."""
        if isinstance(node, ast.Name):
            return self._values_of_name(node.id)
        if isinstance(node, ast.Attribute):
            return self._attributes(self.values_of(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return [
                each for value in self.values_of(node.value) for each in _items(value, node.slice)
            ]
        if isinstance(node, ast.Call):
            return self._values_of_call(node)
        if isinstance(node, ast.NamedExpr):
            return self.values_of(node.value)
        parts: list[ast.expr] = []
        if isinstance(node, ast.IfExp):
            parts = [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            parts = node.values
        return [each for part in parts for each in self.values_of(part)]

    def _values_of_name(self, name: str) -> list[Any]:
        if name in self._asked:  # `a = a.b`
            return []
        self._asked.add(name)
        values = list(self._local.get(name, ()))
        for each in self._assigned.get(name, ()):
            values += self.values_of(each)
        for each in self._members_of.get(name, ()):
            values += self._members(each)
        self._asked.remove(name)
        if name in self._local:
            return values
        if (cell := self.cells.get(name)) is not None:
            return [*values, content(cell)]
        return [*values, self._globals[name]] if name in self._globals else values

    def _members(self, node: ast.expr) -> list[Any]:
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return [value for each in node.elts for value in self.values_of(each)]
        return [each for value in self.values_of(node) for each in _items(value, None)]

    def _values_of_call(self, node: ast.Call) -> list[Any]:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "globals" and not node.args:
            return [self._globals]
        if name == "vars" and len(node.args) == 1:
            return self._attributes(self.values_of(node.args[0]), "__dict__")
        if name == "getattr" and len(node.args) > 1:
            return self._attributes(self.values_of(node.args[0]), _text(node.args[1]))
        # `d.get(key)`, `d.values()`
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "values", "items"):
            key = node.args[0] if node.args else None
            return [
                each for value in self.values_of(node.func.value) for each in _items(value, key)
            ]
        return []

    def _attributes(self, values: list[Any], name: str) -> list[Any]:
        found = []
        for value in values:
            if isinstance(value, ModuleType) and not is_own(value):
                found += [value.modules] if value is sys and name == "modules" else []
            elif name == "__dict__":
                found += [] if (space := attributes_of(value)) is None else [space]
            else:
                # without properties, which may do anything
                with suppress(AttributeError):
                    found.append(inspect.getattr_static(value, name))
        return found

    def called_by(self, node: ast.Call) -> Iterator[tuple[FunctionType, list[list[Any]]]]:
        """Yields the functions that a call may call, and what each of their arguments may be."""
        given = [self.values_of(each) for each in node.args]
        for value in self.values_of(node.func):
            is_static = isinstance(value, staticmethod)
            function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            owners: list[list[Any]] = []
            if isinstance(node.func, ast.Attribute) and not is_static:
                owners = [self.values_of(node.func.value)]
                if any(isinstance(each, (ModuleType, type)) for each in owners[0]):
                    owners = []
            if isinstance(function, MethodType):
                owners, function = [[function.__self__]], function.__func__
            if isinstance(function, FunctionType) and any(given):
                arguments = [*owners, *given]
                known = function.__code__.co_varnames[: function.__code__.co_argcount]
                named = {each.arg: self.values_of(each.value) for each in node.keywords}
                arguments += [named.get(each, []) for each in known[len(arguments) :]]
                yield function, arguments


def _items(value: Any, key: ast.expr | None) -> list[Any]:
    """What may be in a list or dict under this key; None: under any."""
    if value is sys.modules:  # `sys.modules[__name__]`
        return [each for each in list(value.values()) if is_own(each)]
    if type(value) is dict:
        if isinstance(key, ast.Constant):
            return [value[key.value]] if key.value in value else []
        return list(value.values()) if len(value) <= _SHORT else []
    return list(value) if type(value) in (list, tuple) and len(value) <= _SHORT else []


def _places(holders: Iterable[Any], name: str, is_item: bool = False) -> Iterator[tuple[int, str]]:
    for holder in holders:
        yield from _place(holder, name, is_item)


def _text(node: ast.expr) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else ""


def _place(holder: Any, name: str, is_item: bool = False) -> Iterator[tuple[int, str]]:
    is_kept = isinstance(holder, (*CONTAINERS, np.ndarray, torch.Tensor)) or is_walked(holder)
    is_kept |= isinstance(holder, type) and is_of_program(holder)
    # into what is a library's, such as os.environ, anybody may store
    if not (is_kept or is_own(holder)):
        return
    if is_item or isinstance(holder, type):
        yield id(holder), name
    elif isinstance(space := getattr(holder, "__dict__", None), dict):
        yield id(space), name
