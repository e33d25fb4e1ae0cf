"""The state of a loader: where its next batch is, and what must not change before a resume.

`make_state` makes it. `read_state` says where a resume goes on, or names what has changed since the
state was made; `warn_of_other_pixels` names what makes pixels in another way than then.

What must not change is a `fingerprint`, of values that JSON keeps. `iter_changes` yields how two of
them differ; ranks.py compares those of several ranks by it.
"""

import hashlib
import logging
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from dali_pipes.checks import to_python
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.loader.batch import BatchTransform
from dali_pipes.plan.draws import LARGEST_EPOCH
from dali_pipes.plan.plan import Plan
from dali_pipes.plan.transforms import Transform

log = logging.getLogger(__name__)

OTHER_PIXELS = "pixels are made in another way than before this resume"


def make_state(
    plan: Plan,
    transform: Transform,
    batch_transform: BatchTransform | None,
    epoch: int,
    step: int,
    pixels: str | None,
) -> dict[str, Any]:
    """Returns the state of a loader whose next batch is at this epoch and step."""
    return {
        "epoch": epoch,
        # samples of all ranks and not steps: a resume may have another number of ranks
        "samples": min(step * plan.global_batch_size, plan.epoch_samples),
        "pixels": pixels,
        "fingerprint": fingerprint(plan, transform, batch_transform),
    }


def read_state(
    state: Mapping[str, Any],
    plan: Plan,
    transform: Transform,
    batch_transform: BatchTransform | None,
) -> tuple[int, int]:
    """Returns the epoch and the step at which a resume of this plan goes on.

    Raises:
        ConfigError: what decides the order or the pixels has changed since, and the text names it;
            or `state` is not a loader's.
    """
    now, block = fingerprint(plan, transform, batch_transform), plan.global_batch_size
    # index() takes integers of any library, as torch.load may give them, and no fractions
    try:
        epoch, samples, then = (
            *map(operator.index, (state["epoch"], state["samples"])),
            dict(state["fingerprint"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"not the state of a loader ({type(error).__name__}: {error}); pass on "
            "what state_dict() gave"
        ) from None

    changed = [f"{name} ({before} → {after})" for name, before, after in iter_changes(then, now)]
    if changed:
        images = (
            " (manifest: other images, labels or sizes than then)"
            if then.get("manifest") != now["manifest"]
            else ""
        )
        instead = (
            "start a new run"
            if samples
            else f"go on with the start of this state's epoch by set_epoch({epoch})"
        )
        what = f"cannot resume, since these have changed: {', '.join(changed)}{images}"
        raise ConfigError(f"{what}; restore them, or {instead}")

    # states are made between two global batches
    if (
        not 0 <= epoch <= LARGEST_EPOCH
        or samples % block
        or not 0 <= samples < max(plan.epoch_samples, 1)
    ):
        raise ConfigError(
            f"epoch {epoch} with {samples} samples delivered is no state of this "
            "loader; pass on what state_dict() gave"
        )
    return epoch, samples // block


def warn_of_other_pixels(state: Mapping[str, Any], pixels: str | None) -> None:
    """Warns if something else makes the pixels than before: the JPEG engine rounds in another way
    than the CUDA decoder (docs/gpu-path.md).

    Args:
        pixels: what makes them now.
    """
    before = state.get("pixels")
    # a loader that has changed its backend names all of them
    if before != pixels and not {*str(pixels).split(" + ")} <= {*str(before).split(" + ")}:
        log.warning(
            (
                "%s: %s before, now %s (with equal options of the decoder and exact=True "
                "they stay equal bit for bit)"
            ),
            OTHER_PIXELS,
            before or "no GPU",
            pixels or "no GPU",
        )


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
    if manifest.facts.keypoints:
        facts["keypoints"] = list(manifest.facts.keypoints.flipped)
    has_mask = manifest.has_target("mask")
    if manifest.facts.masks_upright and has_mask:
        facts["masks_upright"] = True
    if has_mask and manifest.facts.mask_values.replacements:
        facts["mask_values"] = sorted(map(list, manifest.facts.mask_values.replacements.items()))
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
