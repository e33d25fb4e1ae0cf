"""The state of a lazy loader: where its next batch is, and what must not change before a resume."""

import operator
import warnings
from collections.abc import Mapping
from typing import Any

from dali_pipes.adapters.lazy.order import SampleOrder
from dali_pipes.errors import ConfigError
from dali_pipes.loader.resume import iter_changes
from dali_pipes.plan.draws import LARGEST_EPOCH


def make_state(
    epoch: int,
    samples: int,
    seed: int | None,
    batch_size: int | None,
    facts: dict[str, Any],
    count: dict[str, Any],
) -> dict[str, Any]:
    """The state of a loader whose next batch is in this epoch, after so many samples of all ranks.

    Args:
        batch_size: samples of a batch of one rank; None: it is not known.
        facts: what decides the order, as of `facts_of`.
        count: what the program's own sampler counts, as of `SampleOrder.count_at`.
    """
    if samples and seed is None:
        # Lightning takes one with each checkpoint, which nobody may ever load
        warnings.warn(
            f"the state of a loader in the middle of epoch {epoch} cannot be loaded, since its "
            "program's random numbers cannot be found again; give from_torch a seed=, or take the "
            "state between two epochs",
            stacklevel=3,
        )
    fingerprint = facts | {"seed": seed, "batch_size": batch_size}
    state = {"epoch": epoch, "samples": samples, "fingerprint": fingerprint}
    return state | {"sampler": count} if count else state


def facts_of(order: SampleOrder | None, dataset: Any, workers: int) -> dict[str, Any]:
    """What decides the order of the samples.

    Args:
        order: None: of a stream, whose workers have parts of it.
    """
    try:
        length = len(dataset)
    except TypeError:
        length = None
    if order is None:
        return {"length": length, "order": "a stream", "workers": workers, "ranks": None}
    ranks = order.rank.count
    # the order of all ranks is known, so another number of ranks may go on with it
    of_all = order.inner is not None and not order.has_part
    return {
        "length": length,
        "order": order.describe(),
        "workers": None,
        "ranks": None if of_all else ranks,
        "global_batch_size": None if order.batch_size is None else order.batch_size * ranks,
    }


def read_state(
    state: Mapping[str, Any], seed: int | None, batch_size: int | None, facts: dict[str, Any]
) -> tuple[int, int]:
    """The epoch and the samples after which a resume goes on.

    Raises:
        ConfigError: something else decides the order now, and the text names it; or `state` is no
            state of such a loader.
    """
    try:
        epoch, samples = map(operator.index, (state["epoch"], state["samples"]))
        then = dict(state["fingerprint"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"not the state of a lazy loader ({type(error).__name__}: {error}); pass on what "
            "state_dict() gave"
        ) from None
    if samples and then.get("seed", 0) is None:
        raise ConfigError(
            f"this state is of a loader without a seed, in the middle of epoch {epoch}, where its "
            "program's random numbers cannot be found again; load one that was taken between two "
            "epochs, and give from_torch a seed= for the next run"
        )
    if not 0 <= epoch <= LARGEST_EPOCH or samples < 0 or (samples and "seed" not in then):
        raise ConfigError(
            f"epoch {epoch} with {samples} samples delivered is no state of a lazy loader; pass on "
            "what state_dict() gave"
        )

    now = facts | {"seed": seed, "batch_size": batch_size}
    # more ranks may have smaller batches each, or larger ones together
    for size, other in (("batch_size", "global_batch_size"), ("global_batch_size", "batch_size")):
        if then.get(size) is not None and then.get(size) == now.get(size):
            then[other] = now.get(other)
    changed = [f"{name} ({before} → {after})" for name, before, after in iter_changes(then, now)]
    if changed and samples:
        raise ConfigError(
            f"cannot resume in the middle of epoch {epoch}, since these have changed: "
            f"{', '.join(changed)}; restore them, or go on with the start of an epoch by "
            f"set_epoch({epoch})"
        )
    if changed:
        raise ConfigError(
            f"cannot resume, since these have changed: {', '.join(changed)}; restore them, or "
            f"begin with set_epoch({epoch})"
        )
    return epoch, samples
