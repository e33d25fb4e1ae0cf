"""PyTorch's and NumPy's modes, which a program sets for its model, and which no batch may depend
on.

A mode of the calling thread is left for as long as batches are made: autocast, inference mode, a
device that new tensors are made on, and how NumPy treats a division by zero. A mode of the whole
process cannot be left, since other threads would lose it too: the default dtype, and the number of
threads. So no tensor may be made here without its dtype, and no sum may depend on its order.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from dali_pipes.system.interrupts import delayed_signals

P = ParamSpec("P")
R = TypeVar("R")


# NumPy's at its start
_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


def in_own_modes(function: Callable[P, R]) -> Callable[P, R]:
    """The function, run in the modes of this thread that PyTorch and NumPy begin with.

    What a generator yields is made after the function has returned: wrap what it calls.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if _is_left():
            return function(*args, **kwargs)
        own = _OwnModes()
        try:
            own.enter()
            return function(*args, **kwargs)
        finally:
            try:
                own.leave()
            except BaseException:  # an interrupt, maybe before it did anything
                own.leave()
                raise

    return run


class _OwnModes:
    """The modes of this thread as PyTorch and NumPy begin with them, entered as a whole and left as
    a whole.
    """

    def __init__(self) -> None:
        self._modes = ExitStack()

    def enter(self) -> None:
        with delayed_signals():
            self._modes.enter_context(np.errstate(**_ERRORS))  # type: ignore[arg-type]
            if torch.is_inference_mode_enabled():
                self._modes.enter_context(torch.inference_mode(False))
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    self._modes.enter_context(torch.autocast(kind, enabled=False))
            if torch.get_default_device().type != "cpu":
                self._modes.enter_context(torch.device("cpu"))
            # a program's own modes, such as one that counts operations or makes tensors without
            # data
            if torch._C._len_torch_function_stack():
                self._modes.enter_context(torch._C.DisableTorchFunction())  # type: ignore[no-untyped-call]
            if torch._C._len_torch_dispatch_stack():
                self._modes.enter_context(_disable_current_modes())

    def leave(self) -> None:
        """Harmless when called twice."""
        with delayed_signals():
            self._modes.close()


def _is_left() -> bool:
    """Whether no mode of the thread is set: nearly always, and looked up in less time than leaving
    them takes.
    """
    if (
        torch.is_inference_mode_enabled()
        or torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled("cuda")
    ):
        return False
    if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return False
    return torch.get_default_device().type == "cpu" and np.geterr() == _ERRORS
