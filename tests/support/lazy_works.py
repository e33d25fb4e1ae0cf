"""Pictures that wait, as works of an `Executor`, and how far they are from true ones."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

import dali_pipes as dp
from dali_pipes.adapters.lazy.cells import is_laid_out
from dali_pipes.adapters.lazy.compiler import lines
from dali_pipes.adapters.lazy.compiler.executor import Executor, LazyWork
from dali_pipes.adapters.lazy.found import WaitingParts
from dali_pipes.adapters.lazy.state import eager, waiting

BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "dali": dp.DaliConfig(device="cpu", num_threads=1),
}


def opened(path: str) -> PIL.Image.Image:
    """A picture whose file is closed."""
    picture = PIL.Image.open(path)
    picture.load()
    return picture


def waits_for(program: Callable[..., Any], *each: Sequence[Any]) -> WaitingParts:
    """What a program makes of each of these, while pictures wait."""
    with waiting(True):
        return WaitingParts([program(*arguments) for arguments in zip(*each, strict=True)])


def work_of(found: WaitingParts) -> LazyWork:
    return LazyWork(found.cells, found)


def values_of(work: LazyWork) -> list[Any]:
    """What the program has in the end; the work's error is raised."""
    if work.error:
        raise work.error
    with eager():
        return list(work.parcel.true())


def made_by(executor: Executor, program: Callable[..., Any], *each: Sequence[Any]) -> list[Any]:
    (work,) = executor.run(iter([work_of(waits_for(program, *each))]))
    return values_of(work)


def made_by_backend(
    name: str, program: Callable[..., Any], each: Sequence[Any]
) -> tuple[list[Any], Any]:
    """The same by a backend that gets pictures of every kind, however few; and what it has left to
    the program's libraries.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "FEW", 1)
        executor = Executor(BACKENDS[name], torch.device("cpu"), len(each), ahead=0)
        try:
            made = made_by(executor, program, each)
        finally:
            executor.close()
    return made, executor.left


def steps_apart(made: Any, true: Any, in_a_step: float = 1.0) -> np.ndarray:
    """|difference| of each value, in steps of pixels; shape and dtype must be equal."""
    assert type(made) is type(true), (type(made), type(true))
    assert made.shape == true.shape and made.dtype == true.dtype, (made.shape, made.dtype)
    assert not isinstance(made, torch.Tensor) or is_laid_out(made, true.stride())
    one, other = np.asarray(made, np.float64), np.asarray(true, np.float64)
    return np.asarray(np.abs(one - other) / in_a_step)
