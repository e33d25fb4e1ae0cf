"""What a manifest passes on to its images: `Value` and `method` are an attribute and a method of
them under the same name, with their types and docstrings.

    class Manifest:
        images: ImageTable
        labels = Value(ImageTable.labels)
        take_labels = method(ImageTable.take_labels)
"""

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from dali_pipes.data.image_table import ImageTable

P = ParamSpec("P")
T = TypeVar("T")


class _HasImages(Protocol):
    @property
    def images(self) -> ImageTable: ...


class Value(Generic[T]):
    """An attribute of a manifest that is its images' attribute."""

    # the value is a cached_property, which mypy takes for the function in it
    def __init__(self, value: Callable[[ImageTable], T]):
        self._value, self.__doc__ = cast(cached_property[T], value), value.__doc__

    @overload
    def __get__(self, manifest: None, kind: type) -> Self: ...

    @overload
    def __get__(self, manifest: _HasImages, kind: type) -> T: ...

    def __get__(self, manifest: _HasImages | None, kind: type) -> Self | T:
        # asked of the class itself, as help() does
        if manifest is None:
            return self
        value: T = self._value.__get__(manifest.images)
        return value


def method(
    function: Callable[Concatenate[ImageTable, P], T],
) -> Callable[Concatenate[Any, P], T]:
    """A method of a manifest that calls its images' method."""

    @wraps(function)
    def call(self: _HasImages, /, *args: P.args, **options: P.kwargs) -> T:
        return function(self.images, *args, **options)

    return call
