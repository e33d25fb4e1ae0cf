"""The examination: rounds of all parts, what is measured once, the verdict, and the fixes with
their gain.

`examine` runs a program with a step of its own; `examination` is the same as a generator, for a
program whose own loop trains on the batches. The flow, in `examination`:

measurements.py: rounds of model, loader and both together
-> measurements.py: once: larger batches, cold files, the GPU, the step on one thread beside other
   programs
-> loader.py: if training waits: what an item spends its time with, other numbers of workers
-> the verdict; in a program's own loop, if nothing but the model was found: larger batches
-> gains.py: the fixes, each with what it would gain; the first one is made if it is to be verified
"""

import time
from dataclasses import replace

import psutil
import torch

from dali_pipes.system.memory import memory_left
from dali_pipes.tools.diagnosis.examination.budget import Announce, ProbeBudget
from dali_pipes.tools.diagnosis.examination.diagnosis import Diagnosis
from dali_pipes.tools.diagnosis.examination.gains import find_fixes, verify_first
from dali_pipes.tools.diagnosis.examination.loader import look_at_loader
from dali_pipes.tools.diagnosis.examination.measurements import (
    measure_once,
    measure_rounds,
    try_larger,
)
from dali_pipes.tools.diagnosis.examination.probes import LARGER, Probes
from dali_pipes.tools.diagnosis.examination.state import ExaminationState
from dali_pipes.tools.diagnosis.fixes.prediction import undisturbed
from dali_pipes.tools.diagnosis.measuring.span import Round
from dali_pipes.tools.diagnosis.measuring.training import LoopEnded, Step, Training, drive
from dali_pipes.tools.diagnosis.programs.base import TrainingProgram
from dali_pipes.tools.diagnosis.verdict.figures import MIN_OTHERS, TrainingFigures, median_figures
from dali_pipes.tools.diagnosis.verdict.judge import Verdict, judge
from dali_pipes.tools.diagnosis.verdict.rules import find_causes

OTHER_PROGRAMS = "other programs"
UNDECIDED = ("model-bound", "inconclusive")  # verdicts that name no cause


def examine(
    program: TrainingProgram, budget: ProbeBudget, announce: Announce = lambda text: None
) -> Diagnosis:
    """Runs the program in parts and as a whole, for a few spans each, with its own step.

    Args:
        announce: called with a text before each step.
    """
    step = program.step()
    assert step is not None, f"{type(program).__name__} has no step"
    return drive(examination(program, budget, announce, step), step)


def examination(
    program: TrainingProgram,
    budget: ProbeBudget,
    announce: Announce = lambda text: None,
    step: Step | None = None,
    rounds: list[Round] | None = None,
) -> Training[Diagnosis]:
    """Examines a program whose own loop trains on the batches that this yields.

    Each function that trains is a generator of batches (measuring/training.py).

    Args:
        step: what trains; None: the program's own loop, which may fail at a larger batch, so that
            it is tried last.
        rounds: where complete rounds are put, for who wants to know whether there is one.

    Raises:
        LoopEnded: it was thrown in before one round was complete; later it only leaves out what
            needs training or time.
    """
    state = ExaminationState(program, budget, announce, step, [] if rounds is None else rounds)
    state.one_off = replace(state.one_off, works_beside=program.works_beside)
    slow = list[tuple[str, float]]()

    with program.feed() as feed:
        announce("the first batches")
        probes = Probes(program, feed, budget.seconds)
        yield from probes.start()

        try:
            yield from measure_rounds(state, probes)
            yield from measure_once(state, probes)
        except LoopEnded as end:
            if not state.rounds:
                raise
            missing = budget.rounds - len(state.rounds)
            what = f"{missing} of {budget.rounds} rounds, and " * bool(missing)
            state.leave_out(f"{what}what needs further steps of the loop", end)

        if probes.slowest is not None:
            slow = sorted(feed.slow(probes.slowest), key=lambda image: -image[1])[:5]

    figures = state.figures()
    state.undisturbed = without_others(state, figures)
    tried = yield from look_at_loader(state, figures)

    verdict = judge_with_hidden(state)
    # the program's loop may fail at a larger batch, so it gets one after all that needs the loop;
    # the last fifth of the time is for the fixes
    if not state.ends and not state.is_late(0.8) and _may_be_launch_bound(verdict):
        try:
            yield from try_larger(state, probes)
        except LoopEnded as end:
            state.leave_out("larger batches", end)
        verdict = judge_with_hidden(state)

    fixes = yield from find_fixes(state, verdict, figures, tried)
    fixes = yield from verify_first(state, fixes)
    return Diagnosis(
        verdict,
        figures,
        state.one_off,
        fixes,
        state.rounds,
        state.items,
        slow if verdict.name == "straggler" else [],
        state.resident,
        time.monotonic() - state.begin,
        tuple(state.left_out),
        tuple(program.remarks()),
    )


def judge_with_hidden(state: ExaminationState) -> Verdict:
    """Returns the verdict, and with it what the other programs hide, if they are a cause."""
    workers, burst = state.program.workers, state.program.burst
    verdict = judge(state.rounds, state.one_off, workers, burst)
    named = [verdict.name, *(cause.name for cause in verdict.also)]
    if not state.undisturbed or OTHER_PROGRAMS not in named:
        return verdict

    # larger_gain was measured beside them; on one thread no thread waits for another
    one_off = replace(state.one_off, larger_gain=state.one_off.one_thread_larger_gain)
    then = find_causes(median_figures(state.undisturbed, workers, burst), one_off, workers)

    hidden = [
        replace(cause, is_hidden=True) for cause in then if cause.name not in (*named, *UNDECIDED)
    ]
    return replace(verdict, also=(*verdict.also, *hidden))


def without_others(state: ExaminationState, figures: TrainingFigures) -> list[Round]:
    """Returns the rounds as they would be without other programs; empty if there are none."""
    if figures.others < MIN_OTHERS or torch.cuda.is_available():
        return []
    return undisturbed(
        state.rounds, not state.program.in_flight, figures.model_freed, figures.loader_freed
    )


def _may_be_launch_bound(verdict: Verdict) -> bool:
    """Whether a larger batch is worth trying: nothing else was found, and memory has room."""
    nothing_else = verdict.name in ("model-bound", OTHER_PROGRAMS) and not verdict.also
    return (
        nothing_else
        and not torch.cuda.is_available()
        and LARGER * psutil.Process().memory_info().rss < memory_left()
    )
