"""Numbers and ids in JSON. Programs write null for what they do not know, and numbers as text: null
is missing, and "1" is 1.
"""

import re
from typing import Any

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
LARGEST_INT = 2**63  # whole numbers must be smaller, so that they fit into int64
_LONGEST = 300  # characters of a number that is written as text


def is_id(value: Any) -> bool:
    return type(value) in (int, str) or (type(value) is float and value.is_integer())


def to_number(value: Any) -> int | float | None:
    """Returns a number, also one that is written as text; None: it is neither."""
    # `type(…) in`, since a bool is an int to isinstance
    if type(value) in (int, float):
        return value

    # a longer text is no number that anybody meant, and int() fails from 4,300 digits on
    if (
        type(value) is not str
        or len(value) > _LONGEST
        or not _NUMBER.fullmatch(text := value.strip())
    ):
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def to_numbers(value: Any) -> Any:
    """Returns a number, or a list of them, for what is written as text, and anything else
    unchanged.
    """
    if isinstance(value, list):
        return (
            [to_numbers(item) if type(item) is str else item for item in value]
            if any(type(item) is str for item in value)
            else value
        )
    number = to_number(value) if type(value) is str else None
    return value if number is None else number


def are_numbers(values: Any, count: int) -> bool:
    if not isinstance(values, list) or len(values) != count:
        return False
    return all(
        type(value) is float or (type(value) is int and abs(value) < LARGEST_INT)
        for value in values
    )
