"""The transforms of libraries, which tell the visit of their thread while they are patched.

Each class of torchvision's transforms that defines `__call__` or `forward` is patched, and those of
timm's and albumentations' that the user's program has imported. A call inside another call is a
part of that one. torchvision's Compose only calls other transforms, and its Lambda only calls the
user's function, so they are not steps themselves. Steps of the user's own in a Compose are code
like any other, until `OwnSteps.are_recorded` says that they tell as well.
"""

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from types import FunctionType
from typing import Any

from dali_pipes.adapters.from_torch.recording.active_visit import active
from dali_pipes.adapters.from_torch.recording.cheap import identity
from dali_pipes.adapters.from_torch.recording.marks import is_picture
from dali_pipes.adapters.from_torch.recording.visit import Visit

_PACKAGES = (
    "torchvision.transforms",
    "timm.data.transforms",
    "timm.data.auto_augment",
    "timm.data.random_erasing",
    "albumentations",
)
_PREFIXES = tuple(f"{package}." for package in _PACKAGES)
# whose code the transforms' methods are; a decorator may be of torch
_LIBRARIES = ("torchvision", "timm", "albumentations", "albucore", "torch", "dali_pipes")
_METHODS = ("__call__", "forward")
_KNOWN: set[type] = set()  # classes of libraries that were patched
_TRANSPARENT = ("Compose", "Lambda")  # of torchvision


class _IsTransparent(dict[type, bool]):
    """By a class, whether its calls are no steps: asked for each step of each sample."""

    def __missing__(self, kind: type) -> bool:
        is_of = f"{kind.__module__}.".startswith("torchvision.transforms.")
        self[kind] = is_of and kind.__name__ in _TRANSPARENT
        return self[kind]


_IS_TRANSPARENT = _IsTransparent()
# by the identity of a Compose: itself, so that no other object gets it, its list, and its steps
_WHOLES: dict[int, tuple[Any, list[Any], list[Any]]] = {}
_MOST = 64  # of them


@dataclass
class OwnSteps:
    """Steps in a Compose that are not of a library.

    Attributes:
        are_recorded: whether their calls are told as those of libraries.
        were_called: whether there are any.
    """

    are_recorded: bool = False
    were_called: bool = False


@contextmanager
def steps_patched(own: OwnSteps) -> Iterator[None]:
    """A block in which transforms tell the active visit, if there is one."""
    undo: list[Callable[[], None]] = []

    # classes are patched and not instances, which a program may make anew in each call
    try:
        for kind in _classes():
            _KNOWN.add(kind)
            for name in _METHODS:
                if (method := vars(kind).get(name)) and is_library_code(method):
                    setattr(kind, name, _telling(method, own))
                    undo.append(partial(setattr, kind, name, method))

        yield
    finally:
        _WHOLES.clear()
        for each in reversed(undo):
            each()


def _classes() -> set[type]:
    # the program may import it only when it makes its first sample
    import_module("torchvision.transforms.v2")
    modules = [
        module
        for name, module in list(sys.modules.items())
        if module and f"{name}.".startswith(_PREFIXES)
    ]
    return {
        value
        for module in modules
        for value in list(vars(module).values())
        if isinstance(value, type) and is_transform_class(value)
    }


def is_library_code(method: Any) -> bool:
    """Whether a method is the library's own, and not one that the program has put in its place."""
    function = getattr(method, "__func__", method)
    if not isinstance(function, FunctionType):
        return callable(function)
    package = str(function.__globals__.get("__name__", "")).partition(".")[0]
    return package in _LIBRARIES


def is_transform_class(kind: type) -> bool:
    return f"{kind.__module__}.".startswith(_PREFIXES)


def _telling(method: Callable[..., Any], own: OwnSteps) -> Callable[..., Any]:
    """A method that tells the active visit of its call."""

    @wraps(method)
    def tell(self: Any, *args: Any, **options: Any) -> Any:
        visit = active()
        if visit is None:
            return method(self, *args, **options)
        # one call for all of them: the label pass calls a Compose for every sample, twice
        if _IS_TRANSPARENT[type(self)]:
            if visit.is_cheap and not options and (steps := _known_whole(self)):
                is_done, result = visit.call_whole(steps, self, args)
                if is_done:
                    return result
            if type(self).__name__ == "Compose" and len(args) == 1 and is_picture(args[0]):
                return _call_parts(self, args[0], visit, own)
            return method(self, *args, **options)
        return visit.call(method, self, args, options)

    return tell


def _call_parts(compose: Any, image: Any, visit: Visit, own: OwnSteps) -> Any:
    """The parts of a Compose one after the other, as torchvision calls them."""
    for part in compose.transforms:
        if type(part) in _KNOWN and type(part).__name__ != "Lambda":
            image = part(image)
            continue

        own.were_called = True
        image = visit.call(_call_own, part, (image,), {}) if own.are_recorded else part(image)
    return image


def _call_own(step: Any, image: Any) -> Any:
    return step(image)


def _known_whole(compose: Any) -> list[Any] | None:
    """The same as `_whole`, which is remembered as long as the Compose has the same steps."""
    parts = getattr(compose, "transforms", ())
    known = _WHOLES.get(identity(compose))
    if known is not None and known[0] is compose and _are_same(known[1], parts):
        return known[2]
    steps = _whole(compose)
    # one inside another may get other steps, and this one's list stays the same
    if steps is None or not _are_same(steps, parts):
        return steps
    if len(_WHOLES) > _MOST:
        _WHOLES.clear()
    _WHOLES[identity(compose)] = compose, list(parts), steps
    return steps


def _are_same(ones: Any, others: Any) -> bool:
    """Whether two lists have the same objects; equal ones of the program's may do something else,
    or may not be comparable.
    """
    return len(ones) == len(others) and not any(map(operator.is_not, ones, others))


def _whole(compose: Any) -> list[Any] | None:
    """The steps of a Compose and of those inside it; None: some of them are not of a library."""
    steps: list[Any] = []

    # exact classes: a subclass of the user's own has code of its own
    for each in getattr(compose, "transforms", ()):
        if type(each).__name__ == "Compose" and _IS_TRANSPARENT[type(each)]:
            inner = _whole(each)
            if inner is None:
                return None
            steps += inner
        elif type(each) in _KNOWN and not _IS_TRANSPARENT[type(each)]:
            steps.append(each)
        else:
            return None

    return steps
