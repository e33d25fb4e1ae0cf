"""What a change would gain: the pace of training from the paces of its parts.

`predicted_gain` is for one fix. `undisturbed` calculates the rounds as they would be without the
other programs on the machine.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from dali_pipes.system.cpus import affinity_cores, available_cpus
from dali_pipes.tools.diagnosis.measuring.span import Round, Span
from dali_pipes.tools.diagnosis.programs.base import Fix, Gain, TrainingProgram

MARGIN = 0.2  # of a predicted gain, beside the spread of the rounds


def pace(model: Span, loader: Span, serial: bool = False, cores: int | None = None) -> float:
    """Returns images/s that model and loader allow together: the slower one's, or what the cores
    can do for both.

    `serial`: they alternate.
    """
    if serial:
        return 1 / (1 / model.rate + 1 / loader.rate)
    cpu = max(model.cpu_s / model.images + loader.cpu_s / loader.images, 1e-9)
    return min(model.rate, loader.rate, (cores or available_cpus()) / cpu)


def predicted_gain(
    fix: Fix, program: TrainingProgram, rounds: Sequence[Round], changed: Span | None
) -> Gain | None:
    """Returns the factor on images/s of the whole; None if nothing is known of the change.

    Its interval holds the gains of all rounds, both over the calculated and over the measured pace
    of training.

    Args:
        changed: the part that the fix changes, as it runs alone then; None: `speeds_up` says by how
            much.
    """
    gains = list[float]()
    if changed is None and not fix.speeds_up:
        return None

    for one in rounds:
        serial = not program.in_flight
        before = pace(one.steps, one.loader, serial)
        # from, to, and perhaps the likely factor in between
        for factors in zip(*fix.speeds_up.values(), strict=True) if fix.speeds_up else [()]:
            parts, cores = {"model": one.steps, "loader": one.loader}, available_cpus()
            if changed is not None and fix.program is not None:
                parts[fix.part], serial = changed, not fix.program.in_flight
            else:  # the same work in less time; in as much CPU time if it only waits less
                for part, factor in zip(fix.speeds_up, factors, strict=True):
                    cpu_s = parts[part].cpu_s / (factor if fix.computes_less else 1)
                    parts[part] = replace(parts[part].scaled(1 / factor), cpu_s=cpu_s)
                # today's quota is no bound, since one of these changes raises it
                cores = affinity_cores()

            after = pace(parts["model"], parts["loader"], serial, cores)
            gains += [after / before, after / one.together.rate]
    return gain_interval(gains)


def gain_interval(gains: list[float]) -> Gain:
    return Gain(median(gains), min(gains) * (1 - MARGIN), max(gains) * (1 + MARGIN))


def undisturbed(
    rounds: Sequence[Round], serial: bool, model_freed: float, loader_freed: float
) -> list[Round]:
    """Returns the rounds as they would be without the other programs on this machine.

    Args:
        serial: whether loader and step alternate.
        model_freed, loader_freed: the factors on the pace of each if the other programs ended.
    """
    changed = list[Round]()

    for one in rounds:
        model, loader = (
            remove_others(one.steps, model_freed),
            remove_others(one.loader, loader_freed),
        )

        changed.append(
            Round(
                model, loader, _predict_training(one.together, model, loader, serial, loader_freed)
            )
        )
    return changed


def remove_others(span: Span, factor: float) -> Span:
    """Returns a span whose work is done so many times as fast, with nothing else on the machine.

    What the others may cause is left out: steps that stand in no run queue, since their threads
    wait for each other, and batches that come late. How much of both is the program's own is not
    known then.
    """
    faster, waits = span.scaled(1 / factor), [wait for wait in span.waits_s if wait is not None]
    usual = sum(waits) / len(waits) / factor if waits else 0.0
    even = tuple(None if wait is None else usual for wait in span.waits_s)
    return replace(
        faster,
        busy=min(faster.cores / affinity_cores(), 1.0),
        queued_s=0.0,
        blocked_s=None,
        waits_s=even,
    )


def _predict_training(
    before: Span, model: Span, loader: Span, serial: bool, loader_freed: float
) -> Span:
    """Returns training at the pace that these parts allow, in as many steps as before."""
    steps = len(before.waits_s)
    step_s = before.images / steps / model.rate
    starts = tuple(start / loader_freed for start in before.starts_s)

    seconds_a_step = max(
        before.images / steps / pace(model, loader, serial, affinity_cores()), step_s
    )

    waits = (None,) * len(starts) + (seconds_a_step - step_s,) * (steps - len(starts))
    seconds = steps * step_s + sum(starts) + sum(wait for wait in waits if wait is not None)
    cpu_s = before.images * (model.cpu_s / model.images + loader.cpu_s / loader.images)
    return remove_others(
        replace(before, seconds=seconds, cpu_s=cpu_s, waits_s=waits, starts_s=starts), 1.0
    )
