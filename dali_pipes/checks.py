"""Checks of one value, and its form in Python's own types and in an error.

`check_…(option, value, …)` raises ConfigError with a text that begins with the option's name. Most
of them return the value as one of Python's own types. Options are declared with them (options.py).
"""

import math
import os
import unicodedata
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from dali_pipes.errors import ConfigError

LARGEST_SIDE = 2**16  # pixels; a JPEG has fewer
LARGEST_SEED = 2**64 - 1  # the key of Philox, which makes a plan's draws, has 64 bits


def check_choice(option: str, value: object, choices: Sequence[str | None]) -> None:
    if not (value is None or isinstance(value, str)) or value not in choices:
        raise ConfigError(
            f"{option} is {describe_value(value)}; choose one of "
            f"{', '.join(choice for choice in choices if choice)}"
        )


def check_names(option: str, value: Any, of: str = "class names") -> list[str]:
    """Returns names, each of which is there once, as a list; one text is none.

    Args:
        of: what they are, for errors.
    """
    value = to_python(value)
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f"{option} is {describe_value(value)}; it takes a list of {of}")
    # é may be written as one character or as two
    names = [unicodedata.normalize("NFC", name) for name in value]
    if again := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"{option} names {again[0]!r} twice; a name would mean two things")
    return names


def check_int(
    option: str,
    value: Any,
    minimum: int | float | None = None,
    maximum: int | float | None = None,
) -> int:
    """Returns an int as Python's; True and 3.0 are not ints. Without bounds it must fit 64 bits."""
    value = to_python(value)
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
        raise ConfigError(f"{option} is {describe_value(value)}; it takes whole numbers{limits}")
    return value


def check_number(option: str, value: Any, low: float, high: float = math.inf) -> int | float:
    """Returns a finite number from `low` to `high` as Python's; text is not a number."""
    value = to_python(value)
    if not _is_finite(value) or not low <= value <= high:
        within = low > -math.inf or high < math.inf
        # as many digits as tell 0.9999999 from 1
        limits = f" from {low:.10g} " + (f"to {high:.10g}" if high < math.inf else "on")
        raise ConfigError(
            f"{option} is {describe_value(value)}; it takes "
            f"{f'numbers{limits}' if within else 'finite numbers'}"
        )
    number: int | float = value
    return number


def check_pixels(option: str, value: Any, least: int, *lists: str) -> Any:
    """Returns a whole number as it is, and a list as a tuple; YAML has only lists.

    Args:
        least: the smallest number.
        lists: the lists that are taken, each by the names of its numbers: "(height, width)".

    Raises:
        ConfigError: it is neither, or a number is out of bounds.
    """
    value = to_python(value)
    several = isinstance(value, (list, tuple))
    numbers = tuple(value) if several else (value,)

    whole = all(
        isinstance(number, int) and not isinstance(number, bool) and least <= number <= LARGEST_SIDE
        for number in numbers
    )
    # a name such as "(height, width)" has one comma less than it has numbers
    if not whole or (several and len(numbers) not in [names.count(",") + 1 for names in lists]):
        too_large = any(isinstance(number, int) and number > LARGEST_SIDE for number in numbers)
        limits = f"up to {LARGEST_SIDE}" if too_large else f"from {least} on"
        raise ConfigError(
            f"{option} is {describe_value(value)}; it takes whole numbers {limits}: one, or "
            f"{' or '.join(lists)}"
        )

    return numbers if several else value


def check_ordered_pair(option: str, pair: Any) -> tuple[float, float]:
    """Returns two positive numbers as a tuple, the smaller first; YAML has lists only."""
    pair = to_python(pair)

    if (
        not isinstance(pair, Sequence)
        or len(pair) != 2
        or not all(map(_is_finite, pair))
        or not 0 < pair[0] <= pair[1]
    ):
        # a tuple is shown as a list, which is how one writes it in YAML and on a command line
        listed = list(pair) if isinstance(pair, tuple) else pair
        raise ConfigError(
            f"{option} is {describe_value(listed)}; it takes two positive numbers, the "
            "smaller first"
        )
    return pair[0], pair[1]


def check_fill(name: str, value: Any) -> tuple[int, int, int]:
    """Returns a color, of which one number stands for all three; YAML has only lists."""
    value = to_python(value)
    numbers = list(value) if isinstance(value, (list, tuple)) else [value]
    whole = all(
        isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= 255
        for number in numbers
    )
    if len(numbers) not in (1, 3) or not whole:
        raise ConfigError(
            f"{name} is {describe_value(value)}; it takes a whole number from 0 to 255, or three: "
            "red, green and blue"
        )

    red, green, blue = numbers * (3 // len(numbers))
    return red, green, blue


def check_path(option: str, value: Any) -> Any:
    """Returns the value if it is a path or a URL, as text or as a Path, with ~ replaced by the home
    folder.
    """
    # a PathLike may also stand for bytes
    if isinstance(value, (str, os.PathLike)) and isinstance(path := os.fspath(value), str) and path:
        # no shell replaces ~ in a program or in a YAML file; a file may have that name
        if not path.startswith("~") or os.path.lexists(path):
            return value
        # Path.expanduser raises for an unknown user
        home = os.path.expanduser(path)  # noqa: PTH111
        return Path(home) if isinstance(value, Path) else home

    # what has a length, such as an array or a DataLoader, is named by its type
    what = (
        f"a {type(value).__module__.partition('.')[0]} {type(value).__name__}"
        if hasattr(value, "__len__")
        else describe_value(value)
    )
    what = describe_value(value) if isinstance(value, (str, bytes, list, tuple)) else what
    instead = (
        "; from_torch(dataloader) makes a loader of a DataLoader"
        if type(value).__module__.startswith("torch")
        else ""
    )
    raise ConfigError(f"{option} is {what}; it takes one path or URL{instead}")


def _is_finite(value: object) -> bool:
    """Returns whether this is a finite number, and not True or False."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        return False


def to_python(value: Any) -> Any:
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
        return kind(map(to_python, value))
    if kind is dict:
        return {to_python(key): to_python(item) for key, item in value.items()}

    # arrays and tensors; one of no dimensions is a number
    if isinstance(getattr(value, "ndim", None), int) and hasattr(value, "tolist"):
        try:
            value = value.tolist()
        except Exception:  # a tensor without data, as on the device "meta"
            return value
        if isinstance(value, (bool, list)):
            return to_python(value)

    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, (Real, Decimal)):
        return float(value)
    # the plain text of NumPy's str_, and of an Enum of text, for which str() may give its name
    return str.__str__(value) if isinstance(value, str) else value


def describe_value(value: object) -> str:
    """Returns a value's repr as one line of 100 characters at most."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 100 else f"{text[:97]}…"
