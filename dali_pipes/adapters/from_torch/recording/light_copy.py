"""`light_copy` makes a copy of the user's objects whose attributes may be written."""

import functools
from contextlib import suppress
from copy import copy
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.from_torch.recording.objects import (
    CONTAINERS,
    LARGEST_ARRAY,
    SHORT,
    is_a,
    is_copied,
)

_DEEPEST = 5  # levels of objects that are copied


def light_copy(value: Any, depth: int = 0, done: dict[int, Any] | None = None) -> Any:
    """A copy of the user's own objects and of their lists and dicts, which shares what is in these.

    Data sets of torch and torchvision count as the user's own.
    """
    # objects that refer to each other in a circle are copied once
    done = {} if done is None else done
    if id(value) in done:
        return done[id(value)]
    fresh: Any
    if type(value) in CONTAINERS:
        done[id(value)] = fresh = copy(value)
        # a short list may hold objects, such as the data sets of a ConcatDataset, and a short dict
        # may hold other dicts
        if depth < _DEEPEST and len(fresh) <= SHORT:
            if isinstance(fresh, list):
                fresh[:] = [light_copy(each, depth + 1, done) for each in fresh]
            elif isinstance(fresh, dict):
                for key in list(fresh):
                    fresh[key] = light_copy(fresh[key], depth + 1, done)
        return fresh

    # arrays may be a cache that the data set fills
    if is_a(value, np.ndarray):
        done[id(value)] = fresh = _copy_array(value)
        return fresh
    if type(value) is torch.Tensor and value.device.type == "cpu":
        done[id(value)] = fresh = value.clone() if value.nbytes <= LARGEST_ARRAY else value
        return fresh

    if depth > _DEEPEST or is_a(value, type) or not is_copied(value):
        return value
    fresh = _copy_object(value)
    if fresh is value:
        return value
    if hasattr(fresh, "__del__"):
        kind: Any = type(fresh)
        try:
            fresh.__class__ = _without_finalizer(kind)
        except TypeError:  # a class in C, or one with slots
            return value
    attributes: dict[str, Any] = vars(fresh)

    # noted before its attributes are copied, which may refer to it
    done[id(value)] = fresh
    for name, each in list(attributes.items()):
        attributes[name] = light_copy(each, depth + 1, done)
    return fresh


@functools.cache
def _without_finalizer(kind: type) -> type:
    """The same class for a copy, whose end must not close what the original goes on using."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__slots__": ()}
    return type(kind.__name__, (kind,), {**names, "__del__": lambda self: None})


def _copy_array(value: Any) -> Any:
    """A copy of an array; of a large one a view that cannot be written to."""
    if value.nbytes <= LARGEST_ARRAY:
        return value.copy()
    view = value.view()
    view.flags.writeable = False
    return view


def _copy_object(value: Any) -> Any:
    """A copy of an object with the same attributes; the object itself if it cannot be copied."""
    with suppress(Exception):  # any error of a class that we do not know
        return copy(value)
    # a `__getattr__` that asks an inner object has no end in a copy that has no attributes yet
    with suppress(Exception):
        fresh = object.__new__(type(value))
        fresh.__dict__.update(value.__dict__)
        return fresh
    return value
