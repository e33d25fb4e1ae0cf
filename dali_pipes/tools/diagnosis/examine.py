"""The examination: rounds of all parts, measurements made once, the verdict, and the fixes with their predicted gain."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import torch

from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.memory import memory_left
from dali_pipes.tools.diagnosis.probes import Fix, Probes, Round, TrainingProgram, busy_share, copy_seconds, count_syncs
from dali_pipes.tools.diagnosis.verdict import Figures, OneOffFigures, Verdict, advice, figures, judge
from dali_pipes.tools.diagnosis.window import Window

WORTH = 1.03  # a smaller gain is not proposed
Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings.

    Attributes:
        slow: the images of the batch that was waited for longest, as (name, seconds), the slowest first; for stragglers only.
        resident: the share of the files that was in the page cache when the cold run began; None: unknown, or not run.
    """

    verdict: Verdict
    figures: Figures
    one_off: OneOffFigures
    fixes: list[Fix]
    rounds: list[Round]
    slow: list[tuple[str, float]]
    resident: float | None


@dataclass(frozen=True, slots=True)
class ProbeBudget:
    """The time to spend: rounds, minimum seconds of each window, and pairs of runs with and without the first fix."""

    rounds: int = 3
    seconds: float = 3.0
    verify_pairs: int = 0
    cold: bool = True

    @property
    def steps(self) -> int:
        """About how many steps `examine` announces."""
        return 1 + 4 * self.rounds + 2 + 4 + 2 * self.verify_pairs


def examine(program: TrainingProgram, budget: ProbeBudget, announce: Announce = lambda text: None) -> Diagnosis:
    """Runs the program in parts and as a whole, for a few windows each.

    Args:
        announce: called with a text before each step.
    """
    with program.feed() as feed:
        announce("the first batches")
        probes = Probes(program, feed, budget.seconds)
        rounds = [_round(probes, number, budget.rounds, announce) for number in range(budget.rounds)]
        one_off, resident = _one_off(program, probes, rounds, budget, announce)
        slow = sorted(feed.slow(probes.slowest), key=lambda each: -each[1])[:5] if probes.slowest is not None else []
    verdict, found = judge(rounds, one_off, program.workers, program.burst), figures(rounds, program.burst)
    possible = [*program.fixes(verdict.name), *advice(verdict.name, found, one_off, program.workers)]
    fixes = [_predicted(fix, program, rounds, budget, announce) for fix in possible]
    fixes = sorted((fix for fix in fixes if fix.predicted is None or fix.predicted >= WORTH), key=lambda fix: -(fix.predicted or 0))
    for place, fix in enumerate(fixes):
        if budget.verify_pairs and fix.program:
            fixes[place] = replace(fix, measured=measured_gain(program, fix.program, budget, announce))
            break
    return Diagnosis(verdict, found, one_off, fixes, rounds, slow if verdict.name == "straggler" else [], resident)


def _round(probes: Probes, number: int, count: int, announce: Announce) -> Round:
    """In this order, and in the next round in reverse, so that a machine that slows down favours no part."""
    parts = ("model", "loader", "model_under_load", "together")
    windows: dict[str, Window] = {}
    for part in parts if number % 2 == 0 else parts[::-1]:
        announce(f"round {number + 1} of {count}: {part}")
        windows[part] = getattr(probes, part)()
    return Round(**windows)


def _one_off(
    program: TrainingProgram, probes: Probes, rounds: list[Round], budget: ProbeBudget, announce: Announce
) -> tuple[OneOffFigures, float | None]:
    """The measurements made once, and the share of cold files that were still cached."""
    announce("larger batches")
    larger = None if torch.cuda.is_available() else probes.larger()  # on a GPU the profiler shows how busy it is
    cold, resident = None, None
    if budget.cold and program.paths:
        announce("files that are not in memory")
        cold, resident = probes.cold()
    one_off = OneOffFigures(
        larger_gain=larger.rate / median(one.model.rate for one in rounds) if larger else None,
        cold_rate=cold.rate if cold else None,
        data_fits=program.data_bytes < memory_left(),
        decodes_on_gpu=program.decodes_on_gpu,
        is_fetched=program.is_fetched,
    )
    if torch.cuda.is_available():
        announce("the GPU during a step")
        seconds = median(one.together.seconds / len(one.together.waits_s) for one in rounds)
        copied, pinned = program.transfer_size()
        one_off = replace(
            one_off,
            device_busy=busy_share(probes.one_step),
            syncs=count_syncs(probes.one_step),
            transfer_share=copy_seconds(copied, pinned) / seconds if copied else 0.0,
        )
    return one_off, resident


def _predicted(fix: Fix, program: TrainingProgram, rounds: list[Round], budget: ProbeBudget, announce: Announce) -> Fix:
    """The fix with its predicted gain."""

    def typical(part: str) -> Window:
        """The window with the median rate."""
        return sorted((getattr(one, part) for one in rounds), key=lambda window: window.rate)[len(rounds) // 2]

    def probe(changed: TrainingProgram, part: str) -> Window:
        with changed.feed() as other:
            return getattr(Probes(changed, other, budget.seconds), part)()

    announce(f"what it would gain: {fix.what}")
    try:
        return replace(fix, predicted=predicted_gain(fix, program, typical("model"), typical("loader"), probe))
    except Exception as error:  # such as too little memory: the diagnosis is valid without this fix
        why = (str(error).splitlines() or [type(error).__name__])[0]
        return replace(fix, note=f"could not be tried: {why[:100]}", program=None)


def pace(model: Window, loader: Window, serial: bool = False, cores: int | None = None) -> float:
    """Images/s that both allow together: the slower one's, or what the cores can do for both. `serial`: they alternate."""
    if serial:
        return 1 / (1 / model.rate + 1 / loader.rate)
    cpu = max(model.cpu_s / model.images + loader.cpu_s / loader.images, 1e-9)
    return min(model.rate, loader.rate, (cores or available_cpus()) / cpu)


def predicted_gain(
    fix: Fix, program: TrainingProgram, model: Window, loader: Window, probe: Callable[[TrainingProgram, str], Window]
) -> float | None:
    """The factor on images/s: only the part that is changed is run, alone.

    Args:
        model, loader: these parts before the change.
        probe: runs one part of a program.
    """
    parts, serial = {"model": model, "loader": loader}, not program.in_flight
    before, cores = pace(model, loader, serial), available_cpus()
    if fix.program is not None:
        parts[fix.part], serial = probe(fix.program, fix.part), not fix.program.in_flight
    elif fix.speeds_up:  # the same work in less time, for as much CPU time
        parts |= {part: replace(parts[part], seconds=parts[part].seconds / factor) for part, factor in fix.speeds_up.items()}
        cores = len(os.sched_getaffinity(0))
    else:
        return None
    return pace(parts["model"], parts["loader"], serial, cores) / before


def measured_gain(before: TrainingProgram, after: TrainingProgram, budget: ProbeBudget, announce: Announce) -> float | None:
    """The factor on images/s of the whole, before and after in ABBA order: the geometric mean over the pairs."""
    rates: dict[str, list[float]] = {"before": [], "after": []}
    for number in range(budget.verify_pairs):
        pair = [("before", before), ("after", after)]
        for which, program in pair if number % 2 == 0 else pair[::-1]:
            announce(f"checking the fix: {which}, {number + 1} of {budget.verify_pairs}")
            with program.feed() as feed:
                rates[which].append(Probes(program, feed, budget.seconds).together().rate)
    gain = paired_ratio(rates["before"], rates["after"]).estimate
    return gain if math.isfinite(gain) else None
