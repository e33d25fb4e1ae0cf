"""The state of a loader: where its next batch is, and what must not change before a resume.

`make_state` makes it. `read_state` says where a resume goes on, or names what has changed since the
state was made; `warn_of_other_pixels` names what makes pixels in another way than then.
"""

import logging
import operator
from collections.abc import Mapping
from typing import Any

from dali_pipes.errors import ConfigError
from dali_pipes.loader.batch import BatchTransform
from dali_pipes.loader.fingerprint import fingerprint, iter_changes
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
