"""Finds where a program would wait for a GPU, without one.

Tensors of PyTorch's `meta` device play those of the GPU: they have shapes and types, no values.
What needs a value of one raises by itself, as `.item()` does. A copy from the host to it is what
makes the host wait on a GPU, unless it comes from page-locked memory and is asked for with
`non_blocking`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

GPU = torch.device("meta")
_NEEDS_VALUES = {
    "aten._local_scalar_dense.default",
    "aten.nonzero.default",
    "aten.equal.default",
    "aten.is_nonzero.default",
}


def waits_of(work: Callable[[], Any], monkeypatch: Any) -> list[str]:
    """The operators of `work` for which the host would wait."""
    pinned: dict[int, torch.Tensor] = {}

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        pinned[copy.untyped_storage()._cdata] = copy
        return copy

    with (
        monkeypatch.context() as patched,
        _NewTensors() as new_tensors,
        _Operators(pinned) as operators,
    ):
        patched.setattr(torch.Tensor, "pin_memory", pin)  # which needs a GPU
        work()
    return new_tensors.waits + operators.waits


class _NewTensors(TorchFunctionMode):
    """Sees the tensors that are made of Python's numbers: PyTorch copies these to the device below
    its dispatcher.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if (
            function in (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor)
            and made.device.type == GPU.type
        ):
            self.waits.append(function.__name__)
        return made


class _Operators(TorchDispatchMode):
    def __init__(self, pinned: dict[int, torch.Tensor]):
        super().__init__()
        self.waits: list[str] = []
        self._pinned = pinned

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if str(function) in _NEEDS_VALUES or self._is_waiting_copy(str(function), args, options):
            self.waits.append(str(function))
        return function(*args, **options)

    def _is_waiting_copy(self, name: str, args: Any, options: Any) -> bool:
        if name == "aten._to_copy.default":
            source, target = args[0], torch.device(options.get("device") or args[0].device)
            without_wait = options.get("non_blocking", False)
        elif name == "aten.copy_.default":
            source, target = args[1], args[0].device
            without_wait = bool(args[2]) if len(args) > 2 else options.get("non_blocking", False)
        else:
            return False
        late = without_wait and source.untyped_storage()._cdata in self._pinned
        return source.device.type != target.type and not late
