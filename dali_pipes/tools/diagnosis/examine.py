"""The examination: rounds of all parts, measurements made once, the verdict, and the fixes with their predicted gain."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from dali_pipes.system.memory import memory_left
from dali_pipes.tools.diagnosis import gpu
from dali_pipes.tools.diagnosis.advice import advice
from dali_pipes.tools.diagnosis.predict import measured_gain, predicted_gain
from dali_pipes.tools.diagnosis.probes import Probes, Round
from dali_pipes.tools.diagnosis.program import Fix, TrainingProgram
from dali_pipes.tools.diagnosis.verdict import Figures, OneOffFigures, Verdict, figures, judge
from dali_pipes.tools.diagnosis.window import Window

WORTH = 1.03  # a smaller gain is not proposed
Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A fix, with its predicted gain (None: unknown) and, if it was tried, its measured gain; factors on images/s."""

    fix: Fix
    predicted: float | None
    measured: float | None = None


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
    proposals: list[Proposal]
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
    rounds, one_off, resident, slow = _measure(program, budget, announce)
    verdict, found = judge(rounds, one_off, program.workers, program.burst), figures(rounds, program.burst)
    model, loader = (_typical([getattr(one, part) for one in rounds]) for part in ("model", "loader"))

    def probe(changed: TrainingProgram, part: str) -> Window:
        with changed.feed() as other:
            return getattr(Probes(changed, other, budget.seconds), part)()

    proposals = []
    for fix in program.fixes(verdict.name, advice(verdict.name, found, one_off, program.workers)):
        announce(f"what it would gain: {fix.what}")
        try:
            proposals.append(Proposal(fix, predicted_gain(fix, program, model, loader, probe)))
        except Exception as error:  # such as too little memory: the diagnosis is valid without this fix
            why = (str(error).splitlines() or [type(error).__name__])[0]
            proposals.append(Proposal(replace(fix, note=f"could not be tried: {why[:100]}", program=None), None))
    proposals = sorted(
        (one for one in proposals if one.predicted is None or one.predicted >= WORTH), key=lambda one: -(one.predicted or 0)
    )
    if budget.verify_pairs:
        proposals = _verified(proposals, program, budget, announce)
    return Diagnosis(verdict, found, one_off, proposals, rounds, slow if verdict.name == "straggler" else [], resident)


def _measure(
    program: TrainingProgram, budget: ProbeBudget, announce: Announce
) -> tuple[list[Round], OneOffFigures, float | None, list[tuple[str, float]]]:
    """The rounds, the measurements made once, the share of cold files that were still cached, and the slowest images."""
    with program.feed() as feed:
        announce("the first batches")
        probes = Probes(program, feed, budget.seconds)
        rounds = [_round(probes, number, budget.rounds, announce) for number in range(budget.rounds)]
        one_off, resident = _one_off(program, probes, rounds, budget, announce)
        slow = sorted(feed.slow(probes.slowest), key=lambda each: -each[1])[:5] if probes.slowest is not None else []
    return rounds, one_off, resident, slow


def _verified(proposals: list[Proposal], program: TrainingProgram, budget: ProbeBudget, announce: Announce) -> list[Proposal]:
    """The proposals, with the measured gain of the first one that can be tried."""
    first = next((one for one in proposals if one.fix.program), None)
    if first is None:
        return proposals
    gained = measured_gain(first.fix, program, budget.seconds, budget.verify_pairs, announce)
    return [replace(one, measured=gained) if one is first else one for one in proposals]


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
    announce("larger batches")
    larger = None if torch.cuda.is_available() else probes.larger()  # on a GPU the profiler shows how busy it is
    usual = median(one.model.rate for one in rounds)
    cold, resident = None, None
    if budget.cold and program.paths:
        announce("files that are not in memory")
        found = probes.cold()
        cold, resident = found if found else (None, None)
    device: dict[str, Any] = {}
    if torch.cuda.is_available():
        announce("the GPU during a step")
        seconds = median(one.together.seconds / len(one.together.waits_s) for one in rounds)
        device = gpu.step_figures(probes.one_step, *program.transfer_size(), seconds)
    one_off = OneOffFigures(
        larger_gain=larger.rate / usual if larger else None,
        cold_rate=cold.rate if cold else None,
        data_fits=program.data_bytes < memory_left(),
        decodes_on_gpu=program.decodes_on_gpu,
        **device,
    )
    return one_off, resident


def _typical(windows: list[Window]) -> Window:
    """The window with the median rate."""
    return sorted(windows, key=lambda window: window.rate)[len(windows) // 2]
