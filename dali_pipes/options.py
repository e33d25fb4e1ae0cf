"""Options and arguments whose checks are declared where they stand.

    @dataclass(kw_only=True, slots=True)
    class TorchConfig(Options):
        num_workers: int | None = option(None, check_int, 0)

        __post_init__ = check_options

A dataclass of options calls `check_options` when it is made, which checks every field by its
annotation and by the check that `option` gave it (checks.py). A public function is decorated by
`check_arguments`, which does the same for its arguments.
"""

import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, field, fields
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, ParamSpec, Self, TypeVar, Union, get_args, get_origin

from dali_pipes.checks import check_int, check_number, check_path, describe_value, to_python
from dali_pipes.errors import ConfigError, OptionError

P = ParamSpec("P")
R = TypeVar("R")

# the parts that an annotation of each kind may have; one of the first two must be there
_KINDS: dict[type, tuple[Any, ...]] = {
    int: (int, "int"),
    float: (float, "float"),
    bool: (bool, "bool"),
    Path: (Path, "Path", str, "str"),
}


def option(
    default: Any, check: Callable[..., Any] | None = None, *bounds: Any, **metadata: Any
) -> Any:
    """Returns a field of a dataclass of options, with the check that `check_options` is to do.

    A default that is a class, such as `list`, stands for a new object of it. `metadata` is of the
    dataclass's own.
    """
    metadata["check"] = check, bounds
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def default_of(declared: Field[Any]) -> Any:
    """Returns the default of an option; MISSING if it has none."""
    made = declared.default_factory
    return declared.default if made is MISSING else made()


def check_options(options: Any) -> None:
    """Makes the value of every field of a dataclass plain, and checks it.

    A field whose annotation is int, float or bool takes only such a value. A field made by `option`
    is checked by `check(name, value, *bounds)`; what that returns becomes its value, unless it is
    None. A field whose default or annotation has None takes None unchecked. A field with the
    metadata "as_is" is left alone.

    Raises:
        OptionError: a value cannot work.
    """
    for declared in fields(options):
        before = getattr(options, declared.name)
        if declared.metadata.get("as_is"):
            continue

        kind, (check, bounds) = (
            _read_annotation(declared.type),
            declared.metadata.get("check", (None, ())),
        )
        if before is None and ((kind and kind[1]) or default_of(declared) is None):
            continue

        try:
            value = to_python(before)
            if check and (converted := check(declared.name, value, *bounds)) is not None:
                value = converted
            # after it, since the error of a check of numbers also says the bounds
            value = _check_kind(declared.name, value, kind)
        except OptionError:
            raise  # of options that are the value, such as a policy
        except ConfigError as error:
            raise OptionError(type(options), str(error)) from None

        if value is not before:
            object.__setattr__(options, declared.name, value)  # also where the dataclass is frozen


class Options:
    """The base of dataclasses of options: they take options by name only, and propose a known name
    for an unknown one.
    """

    # without it, subclasses with slots=True would have a `__dict__` all the same, and an attribute
    # with a misspelt name could be set
    __slots__ = ()

    def __new__(cls, *args: Any, **options: Any) -> Self:
        names = [declared.name for declared in fields(cls) if declared.init]  # type: ignore[arg-type]
        if args:
            such = f", such as {names[0]}={describe_value(args[0])}" if names else ""
            raise TypeError(f"{cls.__name__}() takes its options by name{such}")
        refuse_unknown(cls.__name__, options, names)
        return super().__new__(cls)


def check_arguments(
    elsewhere: Mapping[str, str] = MappingProxyType({}), /, **bounds: tuple[int | float, ...]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function: checks its numbers and paths before it is called, and makes numbers
    plain.

    A parameter whose annotation is int, float, bool, or text and a path takes only such a value.

    Args:
        elsewhere: names that other libraries give to such arguments, and what to write instead.
        bounds: the smallest and, after it, the largest value of some numbers.

    Raises:
        ConfigError: a value is of another kind, or out of bounds. A wrong call is Python's
            TypeError; for an unknown name it proposes a known one.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        kinds = {
            name: kind
            for name, parameter in signature.parameters.items()
            if (kind := _read_annotation(parameter.annotation))
        }
        assert kinds.keys() >= bounds.keys(), (
            f"{function.__qualname__}: bounds of what is no number"
        )

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                call = signature.bind(*args, **kwargs)
            except TypeError:
                refuse_unknown(function.__name__, kwargs, signature.parameters, elsewhere)
                # raises Python's own error, with its own text
                return function(*args, **kwargs)

            for name in kinds.keys() & call.arguments.keys():
                value = to_python(call.arguments[name])
                call.arguments[name] = _check_kind(name, value, kinds[name], *bounds.get(name, ()))
            return function(*call.args, **call.kwargs)

        return checked

    return decorate


def refuse_unknown(
    what: str,
    names: Collection[str],
    known: Collection[str],
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raises a TypeError like Python's for the first unknown keyword, and proposes a known one."""
    if (unknown := next((name for name in names if name not in known), None)) is not None:
        text = f"{what}() got an unexpected keyword argument {unknown!r}"
        raise TypeError(
            f"{text}; write {elsewhere[unknown]}"
            if unknown in elsewhere
            else f"{text}{propose_name(unknown, known)}"
        )


def quote(text: str) -> str:
    """Returns the text in the quotes of the command line's grammar, which is Hydra's.

    In them backslashes count as an escape only before a quote, the closing one included, so only
    those are doubled.
    """
    escaped = re.sub(r'(\\*)(")', r"\1\1\\\2", text)
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f'"{escaped}"'


def propose_name(name: str, known: Collection[str]) -> str:
    """Returns what may have been meant, to be added to an error; "" if no known name is near."""
    by_lower = {
        candidate.lower(): candidate for candidate in known if not candidate.startswith("_")
    }
    near = get_close_matches(name.lower(), by_lower, 1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def _read_annotation(annotation: Any) -> tuple[type, bool] | None:
    """Returns the kind of an annotation (int, float, bool or Path) and whether it takes None too;
    returns None for any other annotation.
    """
    # annotations may be text, as under `from __future__ import annotations`
    if isinstance(annotation, str):
        parts = [part.strip() for part in annotation.split("|")]
    else:
        union = get_origin(annotation) in (Union, UnionType)
        parts = [
            "None" if part is type(None) else part
            for part in (get_args(annotation) if union else [annotation])
        ]

    # all parts must be of one kind, and one of them the kind itself: a str alone is no path
    others = [part for part in parts if part != "None"]
    kinds = [
        kind for kind, names in _KINDS.items() if others and all(other in names for other in others)
    ]
    if not kinds or not any(other in _KINDS[kinds[0]][:2] for other in others):
        return None
    return kinds[0], len(others) < len(parts)


def _check_kind(option: str, value: Any, kind: tuple[type, bool] | None, *bounds: float) -> Any:
    if kind is None or (value is None and kind[1]):
        return value

    if kind[0] is bool:
        # 0 and 1 are taken, 0.0 and 1.0 are not, though all four equal a bool
        if value not in (True, False) or isinstance(value, float):
            raise ConfigError(f"{option} is {describe_value(value)}; it takes True or False")
        return bool(value)
    if kind[0] is Path:
        # the empty text of a command line names nothing, where there may be none
        return value if value == "" and kind[1] else check_path(option, value)

    minimum = bounds[0] if bounds else None
    maximum = bounds[1] if len(bounds) > 1 else None
    if kind[0] is int:
        return check_int(option, value, minimum, maximum)
    low = -math.inf if minimum is None else minimum
    high = math.inf if maximum is None else maximum
    return check_number(option, value, low, high)
