"""PyTorch: what tensors do, and how they are put together."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dali_pipes.adapters.lazy import tensors
from dali_pipes.adapters.lazy.steps.step import NoPlace, Step, add, replace


def plan_nothing(row: Any) -> None:
    pass


def plan_cast(row: Any, dtype: Any) -> None:
    row.cast(
        dtype if isinstance(dtype, torch.dtype) else torch.from_numpy(np.empty(0, dtype)).dtype
    )


def _numbers(other: Any) -> Any:
    return np.asarray(other, np.float64) if np.ndim(other) == 0 else np.ravel(other)


def _plan_arithmetic(by: Callable[[Any], Any], plus: Callable[[Any], Any]) -> Callable[..., None]:
    def plan(row: Any, other: Any, dtype: torch.dtype | None) -> None:
        if dtype is None or not dtype.is_floating_point:
            raise NoPlace("arithmetic of whole numbers")
        row.cast(dtype)
        numbers = _numbers(other)
        row.scale_by(_plain(by(numbers)), _plain(plus(numbers)))

    return plan


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else np.asarray(value).tolist()


# what a value becomes with another number, of torch's and NumPy's functions
ARITHMETIC = {
    "mul": _plan_arithmetic(lambda other: other, lambda other: 0),
    "div": _plan_arithmetic(lambda other: 1 / other, lambda other: 0),
    "add": _plan_arithmetic(lambda other: 1, lambda other: other),
    "sub": _plan_arithmetic(lambda other: 1, lambda other: -other),
}
ARITHMETIC |= {
    long: ARITHMETIC[short]
    for short, long in [
        ("mul", "multiply"),
        ("div", "divide"),
        ("sub", "subtract"),
    ]
}


def make_erased(
    tensor: torch.Tensor, top: int, left: int, height: int, width: int, value: Any
) -> torch.Tensor:
    tensor[:, top : top + height, left : left + width] = value
    return tensor


def plan_flip(row: Any, dims: Any) -> None:
    for dim in dims:
        row.reverse(dim)


def _arithmetic(name: str) -> Step:
    def make(tensor: torch.Tensor, other: Any, dtype: torch.dtype) -> torch.Tensor:
        return getattr(tensor.to(dtype), name)(other)

    return Step(name, make, plan=ARITHMETIC[name])


replace("torch.utils.data._utils.collate", "collate_tensor_fn", tensors.collated)
replace("torch.multiprocessing.reductions", "reduce_tensor", tensors.reduced)
replace("torchvision.tv_tensors", "wrap", tensors.wrapped)
add(
    Step("to", lambda tensor, dtype: tensor.to(dtype), plan=plan_cast),
    Step("contiguous", torch.Tensor.contiguous, plan=plan_nothing),
    Step("view", torch.Tensor.view),
    Step("select", torch.Tensor.select),
    Step("squeeze", torch.Tensor.squeeze, plan=lambda row, dim: row.squeeze(dim)),
    Step("unsqueeze", torch.Tensor.unsqueeze, plan=lambda row, dim: row.unsqueeze(dim)),
    Step("permute", torch.Tensor.permute, plan=lambda row, dims: row.permute(*dims)),
    Step(
        "slice",
        lambda tensor, dim, first, last: tensor.narrow(dim, first, last - first),
        plan=lambda row, *args: row.slice(*args),
    ),
    Step("flip", torch.Tensor.flip, plan=plan_flip),
    Step("erase_", make_erased, plan=lambda row, *args: row.erase(*args)),
    *[_arithmetic(name) for name in ("div", "mul", "sub", "add")],
)
