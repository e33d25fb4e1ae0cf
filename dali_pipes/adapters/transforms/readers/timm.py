"""Reads what timm has of its own: RandAugment and RandomErasing."""

import math
from typing import Any

import numpy as np
from PIL import Image

from dali_pipes.adapters.transforms.readers.policies import note_erasing, note_policy
from dali_pipes.adapters.transforms.reading import TransformReading, refuse_unless
from dali_pipes.plan.steps import timm as timm_ops
from dali_pipes.plan.steps.timm import INCREASING, PLAIN, WEIGHTS

_SETS = {PLAIN: "inc0", INCREASING: "inc1", tuple(WEIGHTS): "tweights"}
_SHARED = ("prob", "magnitude", "magnitude_std", "magnitude_max", "hparams", "kwargs")


def read_rand_augment(reading: TransformReading, step: Any) -> str:
    """Reads timm's RandAugment: what its string was, which it does not keep."""
    one, reading.affine = step.ops[0], True
    names, weights = tuple(each.name for each in step.ops), step.choice_weights
    kind = _SETS.get(names)
    refuse_unless(kind, step, f"dali_pipes does not have its operations {', '.join(names[:3])} …")

    expected = np.array(list(WEIGHTS.values())) / sum(WEIGHTS.values())
    right = weights is None
    if kind == "tweights":
        right = not right and np.allclose(weights, expected)
    refuse_unless(right, step, "its operations have weights of their own")
    alike = all(getattr(each, name) == getattr(one, name) for each in step.ops for name in _SHARED)
    share = one.hparams.get("translate_pct", 0.45) == 0.45
    refuse_unless(alike and share, step, "its operations have options of their own")

    numbers = {"m": one.magnitude, "n": step.num_layers, "p": one.prob, "mstd": one.magnitude_std}
    parts = [f"{name}{value:g}" for name, value in numbers.items()]
    parts += [f"mmax{one.magnitude_max}"] * bool(one.magnitude_max)
    config = "-".join(["rand", *parts, str(kind)])
    return note_policy(reading, step, "TimmRandAugment", config=config, **_read_options(step, one))


def _read_options(step: Any, op: Any) -> dict[str, Any]:
    """The interpolation and the color around the image of timm's operations."""
    mode, fill = op.kwargs["resample"], tuple(op.kwargs["fillcolor"])
    several = isinstance(mode, (list, tuple))
    names = [Image.Resampling(each).name.lower() for each in (mode if several else [mode])]
    pair = set(names) == {"bilinear", "bicubic"}
    known = pair if several else names[0] in timm_ops.TIMM_FILTERS
    refuse_unless(known, step, f"interpolation={', '.join(names)}", "use bilinear or bicubic")
    return {"interpolation": "random" if several else names[0], "fill": fill}


def read_erasing(reading: TransformReading, step: Any) -> str:
    """Reads timm's RandomErasing (timm/data/random_erasing.py).

    It draws the same regions as torchvision's, of uniform area and log aspect ratio, and has other
    names for the same options.
    """
    problem = f"num_splits={step.num_splits} leaves a part of each batch out"
    refuse_unless(step.num_splits < 2, step, problem, "set it to 0")
    options: dict[str, Any] = {
        "p": float(step.probability),
        "scale": (float(step.min_area), float(step.max_area)),
        # rounded, since timm keeps logarithms
        "ratio": tuple(round(math.exp(each), 12) for each in step.log_aspect_ratio),
    }
    if not (step.rand_color or step.per_pixel or step.max_count > 1):
        return note_erasing(reading, "RandomErasing", options)

    mode = "pixel" if step.per_pixel else "rand" if step.rand_color else "const"
    counts = {"min_count": int(step.min_count), "max_count": int(step.max_count)}
    return note_erasing(reading, "TimmRandomErasing", options | {"mode": mode, **counts})
