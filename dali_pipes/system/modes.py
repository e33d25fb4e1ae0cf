"""PyTorch's and NumPy's modes, which a program sets for its model, and which no batch may depend on.

A mode of the calling thread is left for as long as batches are made: autocast, inference mode, a device that new tensors are made
on, and how NumPy treats a division by zero. A mode of the whole process cannot be left, since other threads would lose it too: the
default dtype, and the number of threads. So no tensor may be made here without its dtype, and no sum may depend on its order.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
import torch

P = ParamSpec("P")
R = TypeVar("R")


# NumPy's at its start
_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


@contextmanager
def own_modes() -> Iterator[None]:
    """A block in which the modes of this thread are those that PyTorch and NumPy begin with."""
    with ExitStack() as modes:
        modes.enter_context(np.errstate(**_ERRORS))  # type: ignore[arg-type]
        if torch.is_inference_mode_enabled():
            modes.enter_context(torch.inference_mode(False))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                modes.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            modes.enter_context(torch.device("cpu"))
        yield


def in_own_modes(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run in `own_modes`. What a generator yields is made after the function has returned: wrap what it calls."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if _is_left():
            return function(*args, **kwargs)
        with own_modes():
            return function(*args, **kwargs)

    return run


def _is_left() -> bool:
    """Whether no mode of the thread is set: nearly always, and looked up in less time than `own_modes` takes."""
    if torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return False
    return torch.get_default_device().type == "cpu" and np.geterr() == _ERRORS
