"""Why the loader is slow: what an item spends its time with, and what other workers would gain."""

from dataclasses import replace

from dali_pipes.tools.diagnosis.examination.gains import find_gain
from dali_pipes.tools.diagnosis.examination.state import ExaminationState
from dali_pipes.tools.diagnosis.fixes.prediction import (
    MARGIN,
)
from dali_pipes.tools.diagnosis.measuring.training import LoopEnded, Training
from dali_pipes.tools.diagnosis.programs.base import Fix
from dali_pipes.tools.diagnosis.verdict.figures import (
    OneOffFigures,
    TrainingFigures,
    median_figures,
)
from dali_pipes.tools.diagnosis.verdict.rules import MIN_COST, MIN_WORKER_GAIN

DOMINANT_WAIT = 0.5  # share of the time of training; a loader that costs it is not hidden
ITEMS_S = 1.0  # seconds in which items are profiled


def look_at_loader(state: ExaminationState, figures: TrainingFigures) -> Training[list[Fix]]:
    """Finds out what an item spends its time with, and what other numbers of workers gain.

    Only if the loader costs time, or would without the other programs. Returns the fixes that
    were tried.
    """
    then = (
        median_figures(state.undisturbed, state.program.workers, state.program.burst)
        if state.undisturbed
        else None
    )

    waits = figures.wait_share + figures.start_share
    waits_then = then.wait_share + then.start_share if then else 0.0
    if max(waits, waits_then) < MIN_COST:
        return []
    if any(end.is_late for end in state.ends):
        state.leave_out("what an item spends its time with, other numbers of workers")
        return []

    # even after the limit: the cause depends on it, and it takes a second
    state.announce("what an item spends its time with")
    tried = list[Fix]()
    # tried alone then, or the other programs decide which number of workers looks best
    is_hidden = then is not None and waits < DOMINANT_WAIT

    try:
        state.items = state.program.profile(min(ITEMS_S, state.budget.seconds))
        if state.items:
            state.one_off = replace(
                state.one_off, item_waits=state.items.blocked_s / state.items.seconds
            )
        for fix in state.program.other_workers(then or figures, state.items):
            if state.is_late(0.8):
                state.leave_out(fix.what)
            else:
                tried.append((yield from find_gain(state, fix, is_hidden)))
    except LoopEnded as end:
        state.leave_out("other numbers of workers", end)
    state.one_off = _with_gains(state.one_off, state.program.processes, tried)
    return tried


def _with_gains(one_off: OneOffFigures, now: int | None, tried: list[Fix]) -> OneOffFigures:
    """Adds what other numbers of worker processes would gain; 1 where a gain is not certain."""
    gains: dict[bool, list[float]] = {True: [], False: []}
    for fix in tried:
        count = fix.program.processes if fix.program else None
        if fix.predicted and count is not None and now is not None and count != now:
            is_certain = fix.predicted.low / (1 - MARGIN) > MIN_WORKER_GAIN  # in every round
            gains[count > now].append(
                fix.predicted.estimate if is_certain else min(fix.predicted.estimate, 1.0)
            )

    fewer, more = (max(gains[is_more], default=None) for is_more in (False, True))
    return replace(one_off, fewer_gain=fewer, more_gain=more, is_serial=now == 0)
