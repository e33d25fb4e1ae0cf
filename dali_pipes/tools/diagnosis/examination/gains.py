"""What fixes gain, each calculated from a run of the part that it changes, or from its advice.

`find_fixes` lists those that gain something. `verify_first` makes the first one, and measures it.
"""

import math
from dataclasses import replace

from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.cpus import affinity_cores
from dali_pipes.tools.diagnosis.examination.budget import Announce, ProbeBudget
from dali_pipes.tools.diagnosis.examination.measurements import threads_of_torch
from dali_pipes.tools.diagnosis.examination.probes import Probes
from dali_pipes.tools.diagnosis.examination.state import ExaminationState
from dali_pipes.tools.diagnosis.fixes.advice import advice, remedies
from dali_pipes.tools.diagnosis.fixes.prediction import (
    gain_interval,
    predicted_gain,
    remove_others,
)
from dali_pipes.tools.diagnosis.measuring.span import Span
from dali_pipes.tools.diagnosis.measuring.training import LoopEnded, Training, drive
from dali_pipes.tools.diagnosis.programs.base import Fix, TrainingProgram
from dali_pipes.tools.diagnosis.verdict.figures import TrainingFigures, freed
from dali_pipes.tools.diagnosis.verdict.judge import Verdict
from dali_pipes.tools.diagnosis.verdict.rules import Cause

MIN_GAIN = 1.03  # factor on images/s; a fix that gains less is not proposed


def find_fixes(
    state: ExaminationState, verdict: Verdict, figures: TrainingFigures, tried: list[Fix]
) -> Training[list[Fix]]:
    """Returns the fixes that gain something, the surest first.

    Those that gain something only once the other programs have ended come last.
    """
    fixes = list(tried)
    for cause in (Cause(verdict.name, verdict.loss), *verdict.also):
        advised = advice(
            cause.name, figures, state.one_off, state.program.workers, affinity_cores(), state.items
        )
        for fix in [
            *state.program.fixes(cause.name),
            *advised,
            *remedies(cause.name, state.items),
        ]:
            # several causes may have the same fix
            if fix.what in [*(other.what for other in fixes), *state.left_out]:
                continue
            if fix.program and state.is_late(0.9):
                state.leave_out(fix.what)
                continue
            # a LoopEnded stops the trials that need the loop, not the advice
            try:
                fixes.append((yield from find_gain(state, fix, cause.is_hidden)))
            except LoopEnded as end:
                state.leave_out(fix.what, end)

    fixes = [fix for fix in fixes if fix.predicted is None or fix.predicted.estimate >= MIN_GAIN]
    return sorted(
        fixes, key=lambda fix: (fix.is_hidden, -(fix.predicted.low if fix.predicted else 0))
    )


def find_gain(state: ExaminationState, fix: Fix, is_hidden: bool) -> Training[Fix]:
    """Returns the fix with its predicted gain.

    Another loader is trained with for one span, another model is run alone.

    Args:
        is_hidden: whether it can gain something only once the other programs have ended; the
            loader is run alone then, as it is where no loop is left to train.
    """
    state.announce(f"what it would gain: {fix.what}")
    program, changed = state.program, None
    rounds = state.undisturbed if is_hidden else state.rounds
    fix = replace(fix, is_hidden=is_hidden)

    try:
        if fix.threads:
            span = yield from _train_on(state, fix.threads)
            return replace(
                fix, predicted=gain_interval([span.rate / one.together.rate for one in rounds])
            )
        if fix.program is not None and fix.part == "loader":
            with fix.program.feed() as feed:
                probes = Probes(fix.program, feed, state.budget.seconds)
                # without start(): the rounds have warmed up the model
                if not state.ends and not is_hidden:
                    trained = yield from probes.together()
                    return replace(
                        fix,
                        predicted=gain_interval(
                            [trained.rate / one.together.rate for one in rounds]
                        ),
                    )
                changed = yield from probes.loader()
            if is_hidden:
                changed = remove_others(changed, freed(changed, fix.program.workers))
        elif fix.program is not None and (step := fix.program.step()):
            with fix.program.feed() as feed:
                probes = Probes(fix.program, feed, state.budget.seconds)
                drive(probes.start(), step)
                changed = drive(probes.model(), step)

        return replace(fix, predicted=predicted_gain(fix, program, rounds, changed))
    except Exception as error:
        # such as too little memory: the diagnosis is valid without this fix
        why = (str(error).splitlines() or [type(error).__name__])[0]
        return replace(fix, note=f"could not be tried: {why[:100]}", program=None)


def _train_on(state: ExaminationState, threads: int) -> Training[Span]:
    """Trains with the program as it is, its step on so many threads, for one span."""
    with threads_of_torch(threads), state.program.feed() as feed:
        return (yield from Probes(state.program, feed, state.budget.seconds).together())


def verify_first(state: ExaminationState, fixes: list[Fix]) -> Training[list[Fix]]:
    """Makes the first fix that can be made, and measures what it gains."""
    budget = state.budget
    place = next((place for place, fix in enumerate(fixes) if fix.program), None)
    if budget.verify_pairs and place is not None:
        measured = yield from measured_gain(state.program, fixes[place], budget, state.announce)
        fixes[place] = replace(fixes[place], measured=measured)
    return fixes


def measured_gain(
    program: TrainingProgram, fix: Fix, budget: ProbeBudget, announce: Announce
) -> Training[float | None]:
    """Returns the factor on images/s of the whole: the geometric mean over pairs of before and
    after, in ABBA order.
    """
    rates: dict[str, list[float]] = {"before": [], "after": []}
    for number in range(budget.verify_pairs):
        pair = [("before", program), ("after", fix.program or program)]
        # ABBA: a machine that slows down favors neither
        for which, subject in pair if number % 2 == 0 else pair[::-1]:
            announce(f"checking the fix: {which}, {number + 1} of {budget.verify_pairs}")
            with subject.feed() as feed:
                # only a changed model has a step of its own
                own = subject.step() if fix.part == "model" and subject is fix.program else None
                probes = Probes(subject, feed, budget.seconds)
                if own:
                    drive(probes.start(), own)
                    span = drive(probes.together(), own)
                else:
                    yield from probes.start()
                    span = yield from probes.together()
                rates[which].append(span.rate)

    gain = paired_ratio(rates["before"], rates["after"]).estimate
    return gain if math.isfinite(gain) else None
