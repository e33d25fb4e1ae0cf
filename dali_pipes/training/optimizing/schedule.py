"""The learning rate of every step: a pure function of the step, and of the evaluations so far, so
that nothing is stored and a resumed run goes on with the same rates.
"""

import math
from collections.abc import Sequence

from dali_pipes.training.config import ScheduleConfig, TrainConfig


def lr_at(
    config: TrainConfig,
    step: int,
    steps_per_epoch: int,
    peak: float,
    values: Sequence[float] = (),
    mode: str = "max",
) -> float:
    """Returns the learning rate of a step, counted from the start of the run.

    It rises linearly to `peak` over `warmup_epochs`, and then follows `schedule`.

    Args:
        values: what `monitor` was in each evaluation so far, which a plateau follows.
        mode: "max" or "min": which of them are better.

    Warm-up: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour (2017),
    section 2.2.
    """
    schedule = config.schedule

    # times count steps or epochs, whichever the rate changes with
    per_epoch = steps_per_epoch if schedule.unit == "step" else 1
    time = step if schedule.unit == "step" else step // steps_per_epoch
    warmup = round(config.warmup_epochs * per_epoch)

    if time < warmup:
        if schedule.warmup_lr is None:
            return peak * (time + 1) / warmup
        return schedule.warmup_lr + (peak - schedule.warmup_lr) * time / warmup

    if schedule.name == "plateau":
        factor = factor_on_plateau(values, mode, schedule.patience, schedule.decay_rate)
        return max(schedule.min_lr, peak * factor)

    start = warmup if schedule.warmup_prefix else 0
    return _decayed(
        schedule,
        time - start,
        max(1, config.epochs * per_epoch - start),
        schedule.decay_epochs * per_epoch,
        peak,
    )


def _decayed(
    schedule: ScheduleConfig, time: int, duration: int, decay_time: float, peak: float
) -> float:
    """Returns the rate at a time from the start of the schedule, which reaches its end at
    `duration`: after the last step.

    Cosine: Loshchilov and Hutter, SGDR (2017); He et al., Bag of Tricks (2019), 5.1. WSD: Hu et
    al., MiniCPM (2024), with the cooldown of Hägele et al., Scaling Laws and Compute-Optimal
    Training Beyond Fixed Training Durations (2024): 1 - sqrt.
    """
    low = schedule.min_lr
    if schedule.name == "cosine":
        return low + (peak - low) * 0.5 * (1 + math.cos(math.pi * time / duration))
    if schedule.name == "linear":
        return low + (peak - low) * (1 - time / duration)

    if schedule.name == "step":
        return max(low, peak * schedule.decay_rate ** (time // decay_time))
    if schedule.name == "exponential":
        return max(low, peak * schedule.decay_rate ** (time / decay_time))

    if schedule.name == "wsd":
        cooldown = max(1, round(schedule.cooldown * duration))
        progress = max(0.0, (time - (duration - cooldown)) / cooldown)
        return low + (peak - low) * (1 - math.sqrt(progress))
    return peak


def factor_on_plateau(
    values: Sequence[float],
    mode: str = "max",
    patience: int = 10,
    factor: float = 0.1,
    threshold: float = 1e-4,
) -> float:
    """Returns what the learning rate is multiplied by after these values of a metric, one for each
    evaluation so far.

    The rate is reduced as PyTorch's ReduceLROnPlateau does it, which keeps its counts itself: by
    `factor`, each time that more than `patience` values in a row were no improvement. NaN is none.

    Args:
        mode: "max" or "min": which values are better.
        threshold: by which share of the best value a better one must differ from it.
    """
    best = -math.inf if mode == "max" else math.inf
    reductions = idle = 0

    for value in values:
        improved = (
            value > best * (1 + threshold) if mode == "max" else value < best * (1 - threshold)
        )
        if improved:
            best, idle = value, 0
        else:
            idle += 1
        if idle > patience:
            reductions, idle = reductions + 1, 0
    return factor**reductions
