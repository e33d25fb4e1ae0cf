"""The fingerprint of a loader: what must not change between saving its state and resuming from it.

`fingerprint` makes it, of values that JSON keeps. `iter_changes` yields how two of them differ,
which a resume refuses, as does the comparison of ranks (ranks.py).
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from dali_pipes.checks import to_python
from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.batch import BatchTransform
from dali_pipes.plan.plan import Plan
from dali_pipes.plan.transforms import Transform


def fingerprint(
    plan: Plan, transform: Transform, batch_transform: BatchTransform | None
) -> dict[str, Any]:
    """Returns everything that determines the order of the samples and their pixels."""
    return {
        "manifest": plan.manifest.fingerprint,
        **_facts_of_targets(plan.manifest),
        "seed": plan.seed,
        "sampling": to_json_value(plan.sampling_state),
        "last_batch": plan.last_batch,
        "global_batch_size": plan.global_batch_size,
        "transform": to_json_value(transform),
        "batch_transform": to_json_value(batch_transform),
    }


def _facts_of_targets(manifest: Manifest) -> dict[str, Any]:
    """What decides the targets of a batch besides the rows, which the manifest's own fingerprint is
    of.
    """
    facts: dict[str, Any] = {}
    if manifest.keypoints:
        facts["keypoints"] = list(manifest.keypoints.flipped)
    has_mask = manifest.has_target("mask")
    if manifest.masks_upright and has_mask:
        facts["masks_upright"] = True
    if has_mask and manifest.mask_values.replacements:
        facts["mask_values"] = sorted(map(list, manifest.mask_values.replacements.items()))
    return facts


def iter_changes(then: dict[str, Any], now: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yields what differs between two fingerprints: its name, and its values then and now."""
    for name in sorted(then.keys() | now.keys(), key=str):
        before, after = then.get(name), now.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from (
                (f"{name}.{inner}", *values) for inner, *values in iter_changes(before, after)
            )
        elif before != after:
            yield name, before, after


def to_json_value(value: Any) -> Any:
    """Returns a value as text, numbers, lists and dicts that JSON keeps unchanged.

    A function becomes its name only, an array its shape and a part of its hash.
    """
    if isinstance(value, (np.ndarray, torch.Tensor)) and value.ndim:
        # tensors as float64, since NumPy has no bfloat16
        array = np.ascontiguousarray(
            value
            if isinstance(value, np.ndarray)
            else value.detach().cpu().to(torch.float64).numpy()
        )
        return {
            "shape": list(array.shape),
            "sha256": hashlib.sha256(array.tobytes()).hexdigest()[:16],
        }

    value = to_python(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no NaN and no infinity

    if is_dataclass(value) and not isinstance(value, type):
        values = {each.name: to_json_value(getattr(value, each.name)) for each in fields(value)}
        return {"kind": type(value).__name__, **values}
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        # by their text: values of several types have no order
        return sorted(map(to_json_value, value), key=str)
    if isinstance(value, Mapping):
        return {str(name): to_json_value(item) for name, item in value.items()}

    if isinstance(value, Enum):
        return value.name
    if isinstance(value, PurePath):
        return str(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))
