"""NumPy: what arrays do, and how they come to be."""

from typing import Any

import numpy as np
import PIL.Image
import torch

from dali_pipes.adapters.lazy import arrays
from dali_pipes.adapters.lazy.steps.step import NoPlace, Step, add, replace
from dali_pipes.adapters.lazy.steps.torch_ops import ARITHMETIC, plan_cast, plan_nothing


def plan_index(row: Any, at: Any) -> None:
    parts = at if isinstance(at, tuple) else (at,)
    if Ellipsis in parts:
        place = parts.index(Ellipsis)
        missing = (slice(None),) * (len(row.axes) + 1 - len(parts))
        parts = parts[:place] + missing + parts[place + 1 :]
    shape = {"C": row.channels, "H": row.size[0], "W": row.size[1]}
    for dim, part in enumerate(parts):
        if part == slice(None, None, -1):
            row.reverse(dim)
        elif isinstance(part, slice) and part.step in (None, 1):
            first, last, _ = part.indices(shape[row.axes[dim]])
            row.slice(dim, first, last)
        else:
            raise NoPlace("an index")


def plan_rot90(row: Any, quarters: int = 1) -> None:
    method = {1: 2, 2: 3, 3: 4}.get(quarters % 4)
    if method is not None:
        row.transpose(method)


def plan_transposed(row: Any, *axes: Any) -> None:
    axes = axes[0] if len(axes) == 1 else axes
    row.permute(*(axes or range(len(row.axes))[::-1]))


def plan_tensor(row: Any, dtype: torch.dtype) -> None:
    row.become("tensor")
    row.cast(dtype)


def _arithmetic(name: str) -> list[Step]:
    ufunc, plan = getattr(np, name), ARITHMETIC[name]
    turned = plan if name in ("multiply", "add") else None
    return [
        Step(f"np.{name}", lambda array, other, dtype: ufunc(array, other), plan=plan),
        Step(f"np.r{name}", lambda array, other, dtype: ufunc(other, array), plan=turned),
    ]


_PLANS = {"transpose": plan_transposed, "rot90": plan_rot90}
replace("numpy", "array", arrays.array_of(True))
replace("numpy", "asarray", arrays.array_of(False))
replace("numpy", "ascontiguousarray", arrays.contiguous)
replace("torch", "from_numpy", arrays.from_numpy)
replace("torch", "as_tensor", arrays.from_numpy)
replace("torch", "tensor", arrays.tensor_of)
replace("torch.utils.data._utils.collate", "default_convert", arrays.convert)
add(
    Step("index", lambda array, at: array[at], plan=plan_index),
    Step("transposed", lambda array, *axes: array.transpose(*axes), plan=plan_transposed),
    Step("copy", lambda array: array.copy(), plan=plan_nothing),
    Step("astype", lambda array, dtype: array.astype(dtype), plan=plan_cast),
    Step("array", np.array, plan=lambda row: row.become("array", "HWC")),
    Step("asarray", np.asarray, plan=lambda row: row.become("array", "HWC")),
    Step("contiguous_array", np.ascontiguousarray, plan=plan_nothing),
    Step("from_numpy", torch.from_numpy, plan=lambda row: row.become("tensor")),
    Step("fromarray", PIL.Image.fromarray, plan=lambda row: row.become("picture", "HWC")),
    Step("tensor", lambda array, dtype: torch.tensor(array, dtype=dtype), plan=plan_tensor),
    *[
        Step(f"np.{function.__name__}", function, plan=_PLANS.get(function.__name__))
        for function in arrays._VIEWS
    ],
    *[step for name in ("add", "subtract", "multiply", "divide") for step in _arithmetic(name)],
)
