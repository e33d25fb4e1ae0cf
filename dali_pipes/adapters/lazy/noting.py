"""What a program gets that calls a function of the table with something that waits."""

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from dali_pipes.adapters.lazy.arrays import LazyArray
from dali_pipes.adapters.lazy.arrays import _true as true_args
from dali_pipes.adapters.lazy.pictures import is_lazy, note_on_picture
from dali_pipes.adapters.lazy.steps.step import Method, Step
from dali_pipes.adapters.lazy.tensors import LazyTensor

Call = Callable[..., Any]


def instead_of(step: Step, function: Call) -> Call:
    """What is called in place of `function`: notes the step, or does it truly."""
    if isinstance(step.on, Method):
        return step.on
    if not isinstance(step.on, str):
        return partial(step.on, function)  # type: ignore[arg-type]
    note, first = _NOTES[step.on], _first_name(function)

    def call(*args: Any, **options: Any) -> Any:
        if not args and first in options:
            args = (options.pop(first),)
        return note(step, function, args, options)

    return call


def with_true_arrays(function: Call, *args: Any, **options: Any) -> Any:
    """Calls a function that reads memory."""
    return function(*true_args(args), **true_args(options))


def _on_tensor(step: Step, function: Call, args: Any, options: Any) -> Any:
    tensor = args[0] if args else None
    if isinstance(tensor, LazyTensor) and tensor.waits and len(tensor.sides) == 3:
        form = _form(step, args, options)
        if form is not None:
            return tensor.then(*form, step.name, *args[1:], **options)
    return function(*args, **options)


def _on_array(step: Step, function: Call, args: Any, options: Any) -> Any:
    array = args[0] if args else None
    if type(array) is LazyArray and array.waits and array.shape[2:] in ((), (3,)):
        form = _form(step, args, options)
        if form is not None:
            return array.then(np.empty(*form), step.name, *args[1:], **options)
    return function(*true_args(args), **true_args(options))


def _form(step: Step, args: Any, options: Any) -> Any:
    """What the result looks like; None: it cannot be noted.

    A recipe has one source, so a step on two things that wait is none.
    """
    if any(map(_may_wait, (*args[1:], *options.values()))):
        return None
    return step.form(*args, **options)  # type: ignore[misc]


def _may_wait(value: Any) -> bool:
    kind = type(value)  # `==` would be true of np.ndarray, too
    return kind is LazyArray or isinstance(value, LazyTensor) or is_lazy(value)


_NOTES = {"picture": note_on_picture, "tensor": _on_tensor, "array": _on_array}


def _first_name(function: Any) -> str:
    """What the first parameter is called; OpenCV says it in the text."""
    if isinstance(function, FunctionType):
        return function.__code__.co_varnames[0]
    return (inspect.getdoc(function) or "").partition("(")[2].partition(",")[0].strip(" ()[]")
