"""What a program gets that calls a function of the table with something that waits."""

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from torch.compiler import is_compiling

from dali_pipes.adapters.lazy.arrays import LazyArray, true_args
from dali_pipes.adapters.lazy.cells import Form
from dali_pipes.adapters.lazy.pictures import is_lazy, note_on_picture
from dali_pipes.adapters.lazy.steps.step import Method, Step
from dali_pipes.adapters.lazy.tensors import LazyTensor, lazy_of, new_tensors, waiting_tensor

Call = Callable[..., Any]


def instead_of(step: Step, function: Call) -> Call | Method:
    """What is called in place of `function`: notes the step, or does it truly."""
    assert step.on is not None
    if isinstance(step.on, Method):
        return step.on
    if not isinstance(step.on, str):
        return bound(step.on, function)
    note = _NOTES[step.on]

    def call(function: Call, *args: Any, **options: Any) -> Any:
        return note(step, function, args, options)

    return bound(call, function)


def bound(instead: Call, function: Call) -> Call:
    """A function that calls `instead` with the original and the program's arguments.

    The first of them comes by its place, though the program may have named it. torch.compile, to
    which nothing that waits comes, gets the original.
    """
    first = _first_name(function)

    def call(*args: Any, **options: Any) -> Any:
        if is_compiling():
            return function(*args, **options)
        if not args and first in options:
            args = (options.pop(first),)
        return instead(function, *args, **options)

    return call


def with_true_arrays(function: Call, *args: Any, **options: Any) -> Any:
    """Calls a function that reads memory."""
    return function(*true_args(args), **true_args(options))


def _on_tensor(step: Step, function: Call, args: Any, options: Any) -> Any:
    tensor = waiting_tensor(args[0]) if args else None
    if tensor is not None and tensor.is_image:
        form = _form(step, (tensor, *args[1:]), options)
        if form is not None:
            return _tensor_after(tensor, form, step.name, args[1:], options)
    return function(*args, **options)


def _tensor_after(tensor: LazyTensor, form: Any, name: str, args: Any, options: Any) -> Any:
    sides, dtype, *layout = form
    if not layout:
        return tensor.then(sides, dtype, name, *args, **options)
    shape = (*tensor.shape[: len(tensor.lead)], *sides)
    strides = layout[0](shape, tensor.form.strides)
    form = Form(shape, strides, dtype, tensor.lead)
    return new_tensors(tensor.rows_after(name, *args, **options), form)


def _on_array(step: Step, function: Call, args: Any, options: Any) -> Any:
    array = args[0] if args else None
    if type(array) is LazyArray and array.is_image and array.shape[2:] in ((), (3,)):
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
    return kind is LazyArray or lazy_of(value) is not None or is_lazy(value)


_NOTES = {"picture": note_on_picture, "tensor": _on_tensor, "array": _on_array}


def _first_name(function: Any) -> str:
    """What the first parameter is called; OpenCV says it in the text."""
    if isinstance(function, FunctionType):
        return "".join(function.__code__.co_varnames[:1])
    first = (inspect.getdoc(function) or "").partition("(")[2].partition(",")[0]
    return first.partition(":")[0].strip(" ()[]")
