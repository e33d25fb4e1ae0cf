"""Predicts the gain of a change from parts that were measured alone."""

import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.cpus import available_cpus
from dali_pipes.tools.diagnosis.probes import Probes
from dali_pipes.tools.diagnosis.program import Fix, TrainingProgram
from dali_pipes.tools.diagnosis.window import Window


def pace(model: Window, loader: Window, serial: bool = False, cores: int | None = None) -> float:
    """Images/s that both allow together: the slower one's, or what the cores can do for both. `serial`: they alternate."""
    if serial:
        return 1 / (1 / model.rate + 1 / loader.rate)
    cpu = max(model.cpu_per_image + loader.cpu_per_image, 1e-9)
    return min(model.rate, loader.rate, (cores or available_cpus()) / cpu)


def predicted_gain(
    fix: Fix, program: TrainingProgram, model: Window, loader: Window, probe: Callable[[TrainingProgram, str], Window]
) -> float | None:
    """The factor on images/s: only the part that is changed is run, alone.

    Args:
        model, loader: these parts before the change.
        probe: runs one part of a program.
    """
    before = pace(model, loader, serial=not program.in_flight)
    if fix.program is None:
        if not fix.speeds_up:
            return None
        faster = [_faster(window, fix.speeds_up.get(part, 1.0)) for part, window in (("model", model), ("loader", loader))]
        return pace(faster[0], faster[1], not program.in_flight, len(os.sched_getaffinity(0))) / before
    changed, serial = probe(fix.program, fix.part), not fix.program.in_flight
    return (pace(changed, loader, serial) if fix.part == "model" else pace(model, changed, serial)) / before


def _faster(window: Window, factor: float) -> Window:
    """The same work in less time, for as much CPU time."""
    return replace(window, seconds=window.seconds / factor)


def measured_gain(fix: Fix, program: TrainingProgram, seconds: float, pairs: int, announce: Callable[[str], None]) -> float | None:
    """The factor on images/s of the whole, before and after in ABBA order: the geometric mean over the pairs."""
    if fix.program is None:
        return None
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(pairs):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for place in order:
            announce(f"checking the fix: {'after' if place else 'before'}, {number + 1} of {pairs}")
            with ExitStack() as stack:
                one = (program, fix.program)[place]
                rates[place].append(Probes(one, stack.enter_context(one.feed()), seconds).together().rate)
    gain = paired_ratio(*rates).estimate
    return gain if math.isfinite(gain) else None
