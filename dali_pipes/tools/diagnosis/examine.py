"""The examination: rounds of all parts, what is measured once, the verdict, the fixes and what they would gain."""

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
from dali_pipes.tools.diagnosis.subject import Fix, Subject
from dali_pipes.tools.diagnosis.verdict import Extra, Figures, Verdict, figures, judge
from dali_pipes.tools.diagnosis.window import Window

WORTH = 1.03  # a smaller gain is not proposed
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A fix, with what it is predicted to gain (None: nobody knows) and, if it was tried, what it gained; factors on images/s."""

    fix: Fix
    predicted: float | None
    measured: float | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that was found.

    Attributes:
        slow: the images of the batch that was waited for longest, as (name, seconds), the slowest first; for stragglers only.
        resident: the share of the files that was in the page cache when the cold run began; None: unknown, or not run.
    """

    verdict: Verdict
    figures: Figures
    extra: Extra
    proposals: list[Proposal]
    rounds: list[Round]
    slow: list[tuple[str, float]]
    resident: float | None


@dataclass(frozen=True, slots=True)
class Effort:
    """How much time is taken: rounds of windows of at least so many seconds; pairs of runs with and without the first fix."""

    rounds: int = 3
    seconds: float = 3.0
    verify_pairs: int = 0
    cold: bool = True

    @property
    def steps(self) -> int:
        """About how often `examine` tells what it does."""
        return 1 + 4 * self.rounds + 2 + 4 + 2 * self.verify_pairs


def examine(subject: Subject, effort: Effort, tell: Tell = lambda text: None) -> Diagnosis:
    """Runs the subject in parts and as a whole, for a few windows each.

    Args:
        tell: is called with what is about to be done.
    """
    rounds, extra, resident, slow = _measure(subject, effort, tell)
    verdict, found = judge(rounds, extra, subject.workers, subject.burst), figures(rounds, subject.burst)
    model, loader = (_typical([getattr(one, part) for one in rounds]) for part in ("model", "loader"))

    def probe(changed: Subject, part: str) -> Window:
        with changed.feed() as other:
            return getattr(Probes(changed, other, effort.seconds), part)()

    proposals = []
    for fix in subject.fixes(verdict.name, advice(verdict.name, found, extra, subject.workers)):
        tell(f"what it would gain: {fix.what}")
        try:
            proposals.append(Proposal(fix, predicted_gain(fix, subject, model, loader, probe)))
        except Exception as error:  # too little memory for it, say: the diagnosis stands without it
            why = (str(error).splitlines() or [type(error).__name__])[0]
            proposals.append(Proposal(replace(fix, note=f"could not be tried: {why[:100]}", subject=None), None))
    proposals = sorted(
        (one for one in proposals if one.predicted is None or one.predicted >= WORTH), key=lambda one: -(one.predicted or 0)
    )
    if effort.verify_pairs:
        proposals = _verified(proposals, subject, effort, tell)
    return Diagnosis(verdict, found, extra, proposals, rounds, slow if verdict.name == "straggler" else [], resident)


def _measure(subject: Subject, effort: Effort, tell: Tell) -> tuple[list[Round], Extra, float | None, list[tuple[str, float]]]:
    """The rounds, what is measured once, the share of cold files that were not, and the slowest images."""
    with subject.feed() as feed:
        tell("the first batches")
        probes = Probes(subject, feed, effort.seconds)
        rounds = [_round(probes, number, effort.rounds, tell) for number in range(effort.rounds)]
        extra, resident = _extra(subject, probes, rounds, effort, tell)
        slow = sorted(feed.slow(probes.slowest), key=lambda each: -each[1])[:5] if probes.slowest is not None else []
    return rounds, extra, resident, slow


def _verified(proposals: list[Proposal], subject: Subject, effort: Effort, tell: Tell) -> list[Proposal]:
    """With what the first one that can be tried has gained."""
    first = next((one for one in proposals if one.fix.subject), None)
    if first is None:
        return proposals
    gained = measured_gain(first.fix, subject, effort.seconds, effort.verify_pairs, tell)
    return [replace(one, measured=gained) if one is first else one for one in proposals]


def _round(probes: Probes, number: int, count: int, tell: Tell) -> Round:
    """In this order, and in the next round backwards, so that a machine that slows down favours no part."""
    parts = ("model", "loader", "shadow", "together")
    windows: dict[str, Window] = {}
    for part in parts if number % 2 == 0 else parts[::-1]:
        tell(f"round {number + 1} of {count}: {part}")
        windows[part] = getattr(probes, part)()
    return Round(**windows)


def _extra(subject: Subject, probes: Probes, rounds: list[Round], effort: Effort, tell: Tell) -> tuple[Extra, float | None]:
    tell("larger batches")
    larger = None if torch.cuda.is_available() else probes.larger()  # a GPU tells itself how busy it is
    usual = median(one.model.rate for one in rounds)
    cold, resident = None, None
    if effort.cold and subject.paths:
        tell("files that are not in memory")
        found = probes.cold()
        cold, resident = found if found else (None, None)
    device: dict[str, Any] = {}
    if torch.cuda.is_available():
        tell("the GPU during a step")
        seconds = median(one.together.seconds / len(one.together.waits_s) for one in rounds)
        device = gpu.step_figures(probes.one_step, *subject.copied(), seconds)
    extra = Extra(
        larger_gain=larger.rate / usual if larger else None,
        cold_rate=cold.rate if cold else None,
        data_fits=subject.data_bytes < memory_left(),
        decodes_on_gpu=subject.decodes_on_gpu,
        **device,
    )
    return extra, resident


def _typical(windows: list[Window]) -> Window:
    """The one of the median rate."""
    return sorted(windows, key=lambda window: window.rate)[len(windows) // 2]
