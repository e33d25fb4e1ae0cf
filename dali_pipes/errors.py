"""Errors that users cause, and the checks of options that raise them.

Programs print these errors as one line; anything else is a bug and keeps its traceback.

A dataclass of options calls `check_options` when it is made, which checks every field by its
annotation and by the check that `option` gave it. A public function has `checks_arguments`, which
does the same for its arguments. The checks `check_…` raise ConfigError with a text that begins with
the option's name; most of them return the value as one of Python's own types.
"""

import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, fields
from decimal import Decimal
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, ParamSpec, Self, TypeVar, Union, get_args, get_origin

P = ParamSpec("P")
R = TypeVar("R")

LARGEST_SEED = 2**64 - 1  # the key of Philox, which makes a plan's draws, has 64 bits
# the parts that an annotation of each kind may have; one of the first two must be there
_KINDS: dict[type, tuple[Any, ...]] = {
    int: (int, "int"),
    float: (float, "float"),
    bool: (bool, "bool"),
    Path: (Path, "Path", str, "str"),
}


class DaliPipesError(Exception):
    """Base of every error that a user can fix.

    Its text says what is wrong, where, and what to do instead.

    Attributes:
        status: the exit status of a program that ends with it.
    """

    status = 2

    @property
    def summary(self) -> str:
        """The text for a program that has little room for it."""
        return str(self)


class ConfigError(DaliPipesError, ValueError):
    """An option, or a combination of options, that cannot work."""


class OptionError(ConfigError):
    """One option of a dataclass that cannot work.

    Attributes:
        owner: the dataclass.
        problem: what is wrong; begins with the option's name.
    """

    def __init__(self, owner: type, problem: str):
        super().__init__(f"{owner.__name__}.{problem}")
        self.owner, self.problem = owner, problem


class NoGpuError(ConfigError):
    """A GPU is needed, and there is none.

    Attributes:
        of_loader: whether the loader's options need it; otherwise it is the device of the batches.
        reason: why PyTorch sees no GPU, in its own words.
    """

    def __init__(self, message: str, of_loader: bool, reason: str):
        super().__init__(message)
        self.of_loader, self.reason = of_loader, reason


class SmallDataError(ConfigError):
    """There are fewer images than one global batch has, and partial batches are dropped.

    Attributes:
        root, images: the data set, and how many images an epoch of it has.
        batch, ranks: the number of images in a batch of one rank, and of ranks.
    """

    def __init__(self, root: object, images: int, batch: int, ranks: int):
        super().__init__(
            f"{root}: {images} images do not fill one global batch of {batch * ranks} "
            f"({batch} × {ranks} ranks), and last_batch='drop' drops partial ones; use a "
            "smaller batch_size, or last_batch='partial' or 'pad'"
        )
        self.root, self.images, self.batch, self.ranks = root, images, batch, ranks


class ManifestError(DaliPipesError, ValueError):
    """A folder, table or saved manifest that does not describe images."""


class OmissionError(ManifestError):
    """Images or objects that are left out, where `strict` allows none to be."""

    status = 1


class PreparationError(DaliPipesError, RuntimeError):
    """A folder that cannot be prepared, or an archive that cannot be read."""


class WorkerError(DaliPipesError, RuntimeError):
    """A worker process that was killed."""


class BadSampleError(DaliPipesError, RuntimeError):
    """Image files that failed while a loader was running.

    Attributes:
        bad_samples: (id, path, reason) of each.
    """

    def __init__(self, message: str, bad_samples: list[tuple[int, str, str]]):
        super().__init__(message)
        self.bad_samples = bad_samples

    @property
    def summary(self) -> str:
        """The text for the first of the files alone."""
        if not self.bad_samples:
            return str(self)
        _, path, why = self.bad_samples[0]
        return f"{path}: {why}; fix or remove it (dali-pipes scan verify=full lists all such files)"


def option(default: Any, check: Callable[..., Any], *bounds: Any) -> Any:
    """Returns a field of a dataclass of options, with the check that `check_options` is to do."""
    return field(default=default, metadata={"check": (check, bounds)})


def check_options(options: Any) -> None:
    """Makes the value of every field of a dataclass plain, and checks it.

    A field whose annotation is int, float or bool takes only such a value. A field made by `option`
    is checked by `check(name, value, *bounds)`; what that returns becomes its value, unless it is
    None. A field with the metadata "as_is" is left alone.

    Raises:
        OptionError: a value cannot work.
    """
    for each in fields(options):
        before = getattr(options, each.name)
        if each.metadata.get("as_is"):
            continue

        kind, (check, bounds) = _read_annotation(each.type), each.metadata.get("check", (None, ()))
        try:
            value = plain(before)
            # the checks of numbers check the kind too, and their errors also say the bounds
            if check not in _NUMBER_CHECKS:
                value = _check_kind(each.name, value, kind)
            if check and (converted := check(each.name, value, *bounds)) is not None:
                value = converted
            value = _check_kind(each.name, value, kind)
        except ConfigError as error:
            raise OptionError(type(options), str(error)) from None

        if value is not before:
            object.__setattr__(options, each.name, value)  # also where the dataclass is frozen


def checks_arguments(
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
            for name, each in signature.parameters.items()
            if (kind := _read_annotation(each.annotation))
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
                return function(*args, **kwargs)  # raises Python's own error

            for name in kinds.keys() & call.arguments.keys():
                value = plain(call.arguments[name])
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
            else f"{text}{proposal(unknown, known)}"
        )


def proposal(name: str, known: Collection[str]) -> str:
    """Returns what may have been meant, to be added to an error; "" if no known name is near."""
    by_lower = {each.lower(): each for each in known if not each.startswith("_")}
    near = get_close_matches(name.lower(), by_lower, 1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


class Options:
    """The base of dataclasses of options: they take options by name only, and propose a known name
    for an unknown one.
    """

    __slots__ = ()

    def __new__(cls, *args: Any, **options: Any) -> Self:
        names = [each.name for each in fields(cls) if each.init]  # type: ignore[arg-type]
        if args:
            such = f", such as {names[0]}={shown(args[0])}" if names else ""
            raise TypeError(f"{cls.__name__}() takes its options by name{such}")
        refuse_unknown(cls.__name__, options, names)
        return super().__new__(cls)


def plain(value: Any) -> Any:
    """Returns numbers and text of NumPy, PyTorch and the like as Python's own types, and their
    arrays as lists; also within lists, tuples and dicts.

    Only these can be part of a state that JSON and `torch.load(weights_only=True)` take. Anything
    else is returned as it is.
    """
    # exact types: NumPy's float64 is a subclass of float
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list or kind is tuple:
        return kind(map(plain, value))
    if kind is dict:
        return {plain(key): plain(each) for key, each in value.items()}

    # arrays and tensors; one of no dimensions is a number
    if isinstance(getattr(value, "ndim", None), int) and hasattr(value, "tolist"):
        try:
            value = value.tolist()
        except Exception:  # a tensor without data, as on the device "meta"
            return value
        if isinstance(value, (bool, list)):
            return plain(value)

    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, (Real, Decimal)):
        return float(value)
    return str.__str__(value) if isinstance(value, str) else value


def _read_annotation(annotation: Any) -> tuple[type, bool] | None:
    """Returns the kind of an annotation (int, float, bool or Path) and whether it takes None too;
    returns None for any other annotation.
    """
    # annotations may be text, as under `from __future__ import annotations`
    if isinstance(annotation, str):
        parts = [each.strip() for each in annotation.split("|")]
    else:
        union = get_origin(annotation) in (Union, UnionType)
        parts = [
            "None" if each is type(None) else each
            for each in (get_args(annotation) if union else [annotation])
        ]

    others = [part for part in parts if part != "None"]
    found = [
        kind for kind, names in _KINDS.items() if others and all(other in names for other in others)
    ]
    if not found or not any(other in _KINDS[found[0]][:2] for other in others):
        return None
    return found[0], len(others) < len(parts)


def _check_kind(option: str, value: Any, kind: tuple[type, bool] | None, *bounds: float) -> Any:
    if kind is None or (value is None and kind[1]):
        return value

    if kind[0] is bool:
        if value not in (True, False) or isinstance(value, float):
            raise ConfigError(f"{option} is {shown(value)}; it takes True or False")
        return bool(value)
    if kind[0] is Path:
        return check_path(option, value)

    minimum = bounds[0] if bounds else None
    maximum = bounds[1] if len(bounds) > 1 else None
    if kind[0] is int:
        return check_int(option, value, minimum, maximum)
    low = -math.inf if minimum is None else minimum
    high = math.inf if maximum is None else maximum
    return check_number(option, value, low, high)


def check_path(option: str, value: Any) -> Any:
    """Returns the value if it is a path or a URL, as text or as a Path."""
    # a PathLike may also stand for bytes
    if isinstance(value, (str, os.PathLike)) and isinstance(os.fspath(value), str):
        return value

    # what has a length, such as an array or a DataLoader, is named by its type
    what = (
        f"a {type(value).__module__.partition('.')[0]} {type(value).__name__}"
        if hasattr(value, "__len__")
        else shown(value)
    )
    what = shown(value) if isinstance(value, (bytes, list, tuple)) else what
    instead = (
        "; from_torch(dataloader) makes a loader of a DataLoader"
        if type(value).__module__.startswith("torch")
        else ""
    )
    raise ConfigError(f"{option} is {what}; it takes one path or URL{instead}")


def shown(value: object) -> str:
    """Returns a value's repr as one line of 100 characters at most."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else f"{text[:97]}…"


def check_choice(option: str, value: object, choices: Sequence[str | None]) -> None:
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise ConfigError(
            f"{option} is {shown(value)}; choose one of "
            f"{', '.join(choice for choice in choices if choice)}"
        )


def check_min(option: str, value: Any, minimum: float, maximum: float = math.inf) -> Any:
    """Returns a finite number from `minimum` to `maximum` as Python's, or None."""
    value = plain(value)
    if value is None:
        return None

    if not _is_finite(value):
        raise ConfigError(f"{option} is {shown(value)}; it takes numbers from {minimum:g} on")
    if value < minimum:
        raise ConfigError(f"{option} is {value}; it must be at least {minimum}")
    if value > maximum:
        raise ConfigError(f"{option} is {shown(value)}; it can be {maximum} at most")
    return value


def check_int(
    option: str,
    value: Any,
    minimum: int | float | None = None,
    maximum: int | float | None = None,
) -> int:
    """Returns an int as Python's; True and 3.0 are not ints. Without bounds it must fit 64 bits."""
    value = plain(value)
    low = -(2**63) if minimum is None else minimum
    high = LARGEST_SEED if maximum is None else maximum

    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        limits = (
            ""
            if minimum is None
            else f" from {minimum} on"
            if maximum is None
            else f" from {minimum} to {maximum}"
        )
        raise ConfigError(f"{option} is {shown(value)}; it takes whole numbers{limits}")
    return value


def check_number(option: str, value: Any, low: float, high: float) -> int | float:
    """Returns a finite number from `low` to `high` as Python's; text is not a number."""
    value = plain(value)
    if not _is_finite(value) or not low <= value <= high:
        within = low > -math.inf or high < math.inf
        limits = f" from {low:g} to {high:g}" if high < math.inf else f" from {low:g} on"
        raise ConfigError(
            f"{option} is {shown(value)}; it takes "
            f"{f'numbers{limits}' if within else 'finite numbers'}"
        )
    number: int | float = value
    return number


def _is_finite(value: object) -> bool:
    """Returns whether this is a finite number, and not True or False."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def check_ordered_pair(option: str, pair: Any) -> tuple[float, float]:
    """Returns two positive numbers as a tuple, the smaller first; YAML has lists only."""
    pair = plain(pair)

    if (
        not isinstance(pair, Sequence)
        or len(pair) != 2
        or not all(map(_is_finite, pair))
        or not 0 < pair[0] <= pair[1]
    ):
        listed = list(pair) if isinstance(pair, tuple) else pair
        raise ConfigError(
            f"{option} is {shown(listed)}; it takes two positive numbers, the smaller first"
        )
    return pair[0], pair[1]


def check_range(option: str, value: Any, low: float, high: float) -> Any:
    """Returns a number from `low` to `high` as Python's, or None."""
    value = plain(value)
    if value is not None and not _is_finite(value):
        raise ConfigError(f"{option} is {shown(value)}; it takes numbers from {low:g} to {high:g}")
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{option} is {shown(value)}; it must lie between {low} and {high}")
    return value


def check_if_given(option: str, value: object, check: Callable[..., Any], *bounds: Any) -> Any:
    """Does another check for an option that may be None."""
    return None if value is None else check(option, value, *bounds)


# here, since it names the functions above; `check_options` uses it
_NUMBER_CHECKS = (check_min, check_int, check_number, check_range, check_if_given)
