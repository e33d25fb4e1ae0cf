"""Pictures in nested tuples, lists and dicts."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dali_pipes.adapters.from_torch.recording.marks import (
    is_picture,
    is_stack,
)


def pictures_in(value: Any) -> Iterator[Any]:
    """Yields all pictures in nested tuples, lists and dicts; those of a stack one by one."""
    for each in wholes_in(value):
        if is_stack(each):
            yield from each
        else:
            yield each


def wholes_in(value: Any) -> Iterator[Any]:
    """Yields all pictures in nested tuples, lists and dicts; a stack of them as it is."""
    if isinstance(value, dict):
        for each in value.values():
            yield from wholes_in(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from wholes_in(each)
    elif is_stack(value) or is_picture(value):
        yield value


def with_values_of(given: Any, example: Any) -> Any:
    """The pictures of an example of a call's result, and what was given to the call beside pictures
    in the places of the example's other values; None: they have other places.
    """
    if is_picture(example):
        return example
    is_dict = isinstance(example, dict) and isinstance(given, dict)
    if is_dict and list(example) == list(given):
        values = [with_values_of(given[key], each) for key, each in example.items()]
        return None if _lack(values, example.values()) else dict(zip(example, values, strict=True))

    if isinstance(example, (tuple, list)):
        # several crops of one picture
        if is_picture(given) and all(map(is_picture, example)):
            return example
        if not isinstance(given, (tuple, list)) or len(example) != len(given):
            return None
        values = list(map(with_values_of, given, example))
        if _lack(values, example):
            return None
        is_named = hasattr(example, "_fields")
        return type(example)(*values) if is_named else type(example)(values)
    return None if isinstance(example, dict) or is_picture(given) else given


def _lack(values: list[Any], examples: Iterable[Any]) -> bool:
    """Whether a value is None, and its example is not."""
    return any(
        value is None and each is not None for value, each in zip(values, examples, strict=True)
    )


def map_pictures(function: Callable[[Any], Any], value: Any) -> Any:
    """The same nested tuples, lists and dicts with `function` of each leaf."""
    if isinstance(value, dict):
        return {key: map_pictures(function, each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_pictures(function, each) for each in value))
    if type(value) in (tuple, list):
        return type(value)(map_pictures(function, each) for each in value)
    return function(value)
