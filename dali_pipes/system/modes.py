"""Keeps batches independent of the modes of PyTorch and NumPy that a program sets for its model.

Modes of the calling thread are left while a batch is made (`in_own_modes`): autocast, inference
mode, the device of new tensors, and how NumPy treats a division by zero. Modes of the whole process
cannot be left, since other threads would lose them too: the default dtype, and the number of
threads. So this package makes no tensor without its dtype, and no sum that depends on its order.
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


# how NumPy treats errors when it starts
_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


def in_own_modes(function: Callable[P, R]) -> Callable[P, R]:
    """Wraps a function so that it runs in the modes that PyTorch and NumPy start with in a thread.

    Do not wrap a generator, which runs after the function has returned; wrap what it calls.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if _no_mode_set():
            return function(*args, **kwargs)

        own = _OwnModes()
        try:
            own.enter()
            return function(*args, **kwargs)
        finally:
            try:
                own.leave()
            except BaseException:  # an interrupt, maybe before `leave` did anything
                own.leave()
                raise

    return run


class _OwnModes:
    """The modes that PyTorch and NumPy start with in a thread, entered together and left
    together.
    """

    def __init__(self) -> None:
        self._modes = ExitStack()

    def enter(self) -> None:
        # only modes that are set are left: looking costs less
        with delayed_signals():
            self._modes.enter_context(np.errstate(**_ERRORS))  # type: ignore[arg-type]
            if torch.is_inference_mode_enabled():
                self._modes.enter_context(torch.inference_mode(False))
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    self._modes.enter_context(torch.autocast(kind, enabled=False))
            if torch.get_default_device().type != "cpu":
                self._modes.enter_context(torch.device("cpu"))

            # modes of the program's own, such as one that counts operations, or that makes tensors
            # without data
            if torch._C._len_torch_function_stack():
                self._modes.enter_context(torch._C.DisableTorchFunction())  # type: ignore[no-untyped-call]
            if torch._C._len_torch_dispatch_stack():
                self._modes.enter_context(_disable_current_modes())

    def leave(self) -> None:
        """Leaves what `enter` has entered; may be called twice."""
        with delayed_signals():
            self._modes.close()


def _no_mode_set() -> bool:
    """Whether no mode of the thread is set. That is so nearly always, and to look takes less time
    than to leave the modes.
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
