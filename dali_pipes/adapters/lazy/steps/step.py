"""One row for each function that is noted: `STEPS`.

    add(
        Step(
            "crop",
            form=lambda picture, box: ((box[2] - box[0], box[3] - box[1]), picture.mode, True),
            plan=lambda row, box: row.crop(box[1], box[0], box[3] - box[1], box[2] - box[0]),
            owner="PIL.Image",
            attribute="Image.crop",
            on="picture",
        )
    )

A program that calls the function with something that waits gets something else that waits, which
looks as `form` says. `make` does it truly, later or in another process, and `plan` says what it
becomes for a backend. So notes, patches and compiler read one table.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

# (original function, the program's arguments): what the program gets
Instead = Callable[..., Any]


class NoPlace(Exception):
    """The plan has no place for a step; says for which one."""


@dataclass(frozen=True)
class Method:
    """What takes the place of a method or property of a class, in the class itself.

    That takes a microsecond less for each call than a function's own code (patching.py). Whoever
    has taken the method from its class before has the original.

    Attributes:
        make: (original) returns it.
    """

    make: Callable[[Any], Any]


@dataclass(frozen=True)
class Step:
    """A row of the table.

    Attributes:
        name: what it is called in recipes; used once.
        make: (value, *args, **options) does it truly. None: the library's function itself.
        form: (what waits, *args, **options) says what the result looks like; None: it cannot be
            noted with these arguments, and the true thing is made. Of a picture: (size, mode,
            whether it keeps `info`, what is noted as arguments, frozen, or None for those of the
            program). Of an array: (shape, dtype). Of a tensor: (shape of one picture, dtype), and
            perhaps (shape, strides before) -> strides; without it they are in the same order if
            the shape stays, and else those of contiguous memory.
        plan: (row, *args, **options) changes a `Row` of the compiler, or raises `NoPlace`. None:
            the plan has no place for it.
        owner: the module that has the function; it may be imported later than this table.
        attribute: the function's name there, as in "resize" or "Image.resize".
        on: what it is noted of: "picture", "tensor" or "array", its first argument; or a function
            (original, *args, **options) that decides for itself what the program gets; or a
            `Method` that does.
    """

    name: str
    make: Any = None
    form: Callable[..., Any] | None = None
    plan: Callable[..., None] | None = None
    owner: str = ""
    attribute: str = ""
    on: str | Instead | Method | None = None

    def __post_init__(self) -> None:
        if self.make is None:
            object.__setattr__(self, "make", Original(self.owner, self.attribute))


class Original:
    """A library's function as it was before it was replaced; its module is imported when called."""

    def __init__(self, owner: str, attribute: str):
        self.owner, self.attribute = owner, attribute

    def __call__(self, *args: Any, **options: Any) -> Any:
        return original(self.owner, self.attribute)(*args, **options)


@dataclass(frozen=True)
class Patch:
    """A function that is replaced, as of `Step`.

    Attributes:
        instead: (original, *args, **options) is called in its place; or a `Method`. A property is
            put there as it is. None: the function gets true arrays for those that wait.
    """

    owner: str
    attribute: str
    instead: Any


def by_name(owner: str, attribute: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For a `form` or a `plan` that gets the arguments by the names that the function has for them,
    with its defaults; OpenCV says names, but no defaults.
    """

    @cache
    def parameters() -> tuple[tuple[str, ...], dict[str, Any]]:
        function = original(owner, attribute)
        if not isinstance(function, FunctionType):
            described = (inspect.getdoc(function) or "").partition(")")[0].partition("(")[2]
            return tuple(re.findall(r"\w+", described)), {}
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        given = function.__defaults__ or ()
        return names, dict(zip(names[len(names) - len(given) :], given, strict=True))

    def bind(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *args: Any, **options: Any) -> Any:
            names, defaults = parameters()
            return function(
                first, **{**defaults, **dict(zip(names[1:], args, strict=False)), **options}
            )

        return call

    return bind


STEPS: dict[str, Step] = {}
PATCHES: list[Patch] = []  # functions that note no step of their own, such as `PIL.Image.open`


def add(*steps: Step) -> None:
    """Adds rows. Names are used once: a recipe must not be read otherwise than it was noted."""
    for step in steps:
        if step.name in STEPS:
            raise ValueError(f"two steps are called {step.name}")
        STEPS[step.name] = step
        if step.on is not None:
            _claim(step.owner, step.attribute)


def replace(owner: str, attribute: str, instead: Any) -> None:
    """Has `instead` called in place of a function, which notes no step of its own."""
    PATCHES.append(Patch(owner, attribute, instead))
    _claim(owner, attribute)


_REPLACED: set[tuple[str, str]] = set()


def _claim(owner: str, attribute: str) -> None:
    if (owner, attribute) in _REPLACED:
        raise ValueError(f"{owner}.{attribute} is replaced by two rows")
    _REPLACED.add((owner, attribute))


# What functions were

_ORIGINALS: dict[tuple[str, str], Any] = {}


def place(owner: str, attribute: str) -> tuple[Any, str]:
    """The module or class that has it, and its name there. The module is imported."""
    module = sys.modules.get(owner) or importlib.import_module(owner)
    *classes, name = attribute.split(".")
    for each in classes:
        module = getattr(module, each)
    return module, name


def found(owner: str, attribute: str) -> Any:
    """What is there now, without decorators; None: nothing of its own."""
    at, name = place(owner, attribute)
    value = vars(at).get(name)
    value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
    return inspect.unwrap(value) if isinstance(value, FunctionType) else value


def original(owner: str, attribute: str) -> Any:
    """What was there when it was first asked for: before it was replaced, which asks, too.

    A function of Python is replaced by its code (patching.py), so this is a copy of it.
    """
    key = owner, attribute
    if key not in _ORIGINALS:
        value = found(owner, attribute)
        _ORIGINALS.setdefault(key, _copied(value) if isinstance(value, FunctionType) else value)
    return _ORIGINALS[key]


def _copied(function: FunctionType) -> FunctionType:
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made
