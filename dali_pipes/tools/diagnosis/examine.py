"""The examination: rounds of all parts, what is measured once, the verdict, and the fixes with
their gain.

`examine` runs a program with a step of its own; `examination` is the same as a generator, for a
program whose own loop trains on the batches. The flow, in `Examination.run`:

rounds of model, loader and both together
-> once: larger batches, cold files, the GPU, the step on one thread beside other programs
-> if training waits: what an item spends its time with, other numbers of workers
-> the verdict; in a program's own loop, if nothing but the model was found: larger batches
-> the fixes, each with what it would gain; the first one is made if it is to be verified
"""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import psutil
import torch

from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.memory import memory_left
from dali_pipes.tools.diagnosis.advice import advice, remedies
from dali_pipes.tools.diagnosis.items import ItemProfile
from dali_pipes.tools.diagnosis.prediction import (
    MARGIN,
    gain_interval,
    predicted_gain,
    remove_others,
    undisturbed,
)
from dali_pipes.tools.diagnosis.probes import LARGER, Fix, Probes, TrainingProgram, copy_seconds
from dali_pipes.tools.diagnosis.span import LoopEnded, Round, Span, Step, Training, drive
from dali_pipes.tools.diagnosis.verdict import (
    MIN_COST,
    MIN_OTHERS,
    MIN_WORKER_GAIN,
    Cause,
    OneOffFigures,
    TrainingFigures,
    Verdict,
    causes,
    figures,
    freed,
    judge,
)

MIN_GAIN = 1.03  # factor on images/s; a fix that gains less is not proposed
PARTS = ("model", "loader", "together")
OTHER_PROGRAMS = "other programs"
UNDECIDED = ("model-bound", "inconclusive")  # verdicts that name no cause
DOMINANT_WAIT = 0.5  # share of the time of training; a loader that costs it is not hidden
ITEMS_S = 1.0  # seconds in which items are profiled
Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of an examination.

    Attributes:
        items: what an item spends its time with; None: the program does not show its items.
        slow: the images of the batch that was waited for longest, as (name, seconds), the slowest
            first; for stragglers only.
        resident: the share of the files that was in the page cache when the cold run began; None:
            unknown, or not run.
        seconds: how long the examination took.
        left_out: what was not measured, since there was no time for it, in words.
        remarks: what is wrong with the program, or may cost time, as far as it can be seen without
            measuring; in words.
    """

    verdict: Verdict
    figures: TrainingFigures
    one_off: OneOffFigures
    fixes: list[Fix]
    rounds: list[Round]
    items: ItemProfile | None
    slow: list[tuple[str, float]]
    resident: float | None
    seconds: float
    left_out: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeBudget:
    """The time to spend: rounds, minimum seconds of each span, and pairs of runs with and without
    the first fix.

    Attributes:
        limit_s: seconds after which no further round and no further fix is begun; one round is
            always measured.
    """

    rounds: int = 3
    seconds: float = 3.0
    verify_pairs: int = 0
    cold: bool = True
    limit_s: float = math.inf

    @property
    def steps(self) -> int:
        """About how many steps `examine` announces."""
        # the first batches, the rounds, three things measured once, about four fixes, the check
        return 1 + len(PARTS) * self.rounds + 3 + 4 + 2 * self.verify_pairs


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

    Args:
        step: what trains; None: the program's own loop, which may fail at a larger batch, so that
            it is tried last.
        rounds: where complete rounds are put, for who wants to know whether there is one.

    Raises:
        LoopEnded: it was thrown in before one round was complete; later it only leaves out what
            needs training or time.
    """
    return Examination(program, budget, announce, step, [] if rounds is None else rounds).run()


class Examination:
    """The examination of one program, from its first batches to the diagnosis.

    The arguments are those of `examination`. Each method that trains is a generator of batches
    (span.py).
    """

    def __init__(
        self,
        program: TrainingProgram,
        budget: ProbeBudget,
        announce: Announce,
        step: Step | None,
        rounds: list[Round],
    ):
        self._program, self._budget, self._announce, self._step = program, budget, announce, step
        self._rounds, self._undisturbed = rounds, list[Round]()
        self._begin = time.monotonic()
        self._left_out = list[str]()
        self._ends = list[LoopEnded]()  # empty while the loop goes on
        self._one_off = OneOffFigures()
        self._items: ItemProfile | None = None
        self._resident: float | None = None

    def run(self) -> Training[Diagnosis]:
        slow = list[tuple[str, float]]()
        with self._program.feed() as feed:
            self._announce("the first batches")
            probes = Probes(self._program, feed, self._budget.seconds)
            yield from probes.start()

            try:
                yield from self._measure_rounds(probes)
                yield from self._measure_once(probes)
            except LoopEnded as end:
                if not self._rounds:
                    raise
                missing = self._budget.rounds - len(self._rounds)
                what = f"{missing} of {self._budget.rounds} rounds, and " * bool(missing)
                self._leave_out(f"{what}what needs further steps of the loop", end)

            if probes.slowest is not None:
                slow = sorted(feed.slow(probes.slowest), key=lambda each: -each[1])[:5]

        found = self._figures()
        self._undisturbed = self._without_others(found)
        tried = yield from self._look_at_loader(found)
        verdict = self._judge()
        if not self._ends and not self._is_late(0.8) and _may_be_launch_bound(verdict):
            try:
                yield from self._try_larger(probes)
            except LoopEnded as end:
                self._leave_out("larger batches", end)
            verdict = self._judge()

        fixes = yield from self._find_fixes(verdict, found, tried)
        return Diagnosis(
            verdict,
            found,
            self._one_off,
            (yield from self._verify_first(fixes)),
            self._rounds,
            self._items,
            slow if verdict.name == "straggler" else [],
            self._resident,
            time.monotonic() - self._begin,
            tuple(self._left_out),
            tuple(self._program.remarks()),
        )

    # The state of the examination

    def _is_late(self, share: float = 1.0) -> bool:
        spent = time.monotonic() - self._begin > share * self._budget.limit_s
        return spent or any(end.is_late for end in self._ends)

    def _leave_out(self, what: str, end: LoopEnded | None = None) -> None:
        self._left_out.append(what)
        self._ends += [end] if end else []

    def _figures(self) -> TrainingFigures:
        return figures(self._rounds, self._program.workers, self._program.burst, self._one_off)

    def _judge(self) -> Verdict:
        """Returns the verdict, and with it what the other programs hide, if they are a cause."""
        workers = self._program.workers
        verdict = judge(self._rounds, self._one_off, workers, self._program.burst)
        named = [verdict.name, *(cause.name for cause in verdict.also)]
        if not self._undisturbed or OTHER_PROGRAMS not in named:
            return verdict

        # larger_gain was measured beside them; on one thread no thread waits for another
        one_off = replace(self._one_off, larger_gain=self._one_off.one_thread_larger_gain)
        then = causes(figures(self._undisturbed, workers, self._program.burst), one_off, workers)

        hidden = [
            replace(cause, is_hidden=True)
            for cause in then
            if cause.name not in (*named, *UNDECIDED)
        ]
        return replace(verdict, also=(*verdict.also, *hidden))

    def _without_others(self, found: TrainingFigures) -> list[Round]:
        """Returns the rounds as they would be without other programs; empty if there are none."""
        if found.others < MIN_OTHERS or torch.cuda.is_available():
            return []
        return undisturbed(
            self._rounds, not self._program.in_flight, found.model_freed, found.loader_freed
        )

    # What is measured

    def _measure_rounds(self, probes: Probes) -> Training[None]:
        budget = self._budget
        for number in range(budget.rounds):
            before = time.monotonic()
            self._rounds.append(
                (yield from _measure_round(probes, number, budget.rounds, self._announce))
            )
            took, spent = time.monotonic() - before, time.monotonic() - self._begin

            # the limit leaves time for what comes after the rounds
            left = budget.rounds - number - 1
            if left and spent + took > 0.6 * budget.limit_s:
                self._leave_out(f"{left} of {budget.rounds} rounds")
                return

    def _measure_once(self, probes: Probes) -> Training[None]:
        """Measures what is not part of the rounds: larger batches, cold files, GPU, one thread."""
        program, on_gpu = self._program, torch.cuda.is_available()
        self._one_off = replace(
            self._one_off,
            data_fits=program.data_bytes < memory_left(),
            decodes_on_gpu=program.decodes_on_gpu,
            is_fetched=program.is_fetched,
            starts_anew=program.starts_anew,
        )

        if self._step and not on_gpu:  # on a GPU the profiler shows how busy it is
            # a user's step may raise anything at a batch of another size
            with contextlib.suppress(Exception):
                rate = drive(self._rate_with_larger(probes), self._step)
                self._one_off = replace(self._one_off, larger_gain=rate and rate / self._model_rate)

        if self._budget.cold and program.paths:
            self._announce("files that are not in memory")
            cold, self._resident = yield from probes.cold()
            self._one_off = replace(self._one_off, cold_rate=cold.rate if cold else None)

        if on_gpu:
            yield from self._look_at_gpu(probes)
        elif (
            self._figures().others >= MIN_OTHERS
            and program.uses_torch_threads
            and torch.get_num_threads() > 1
        ):
            yield from self._measure_one_thread(probes)

    def _look_at_gpu(self, probes: Probes) -> Training[None]:
        self._announce("the GPU during a step")
        seconds = median(one.together.seconds / len(one.together.waits_s) for one in self._rounds)
        copied, pinned = self._program.transfer_size()
        self._one_off = replace(
            self._one_off,
            device_busy=(yield from probes.busy_share()),
            syncs=(yield from probes.count_syncs()),
            transfer_share=copy_seconds(copied, pinned) / seconds if copied else 0.0,
        )

    def _measure_one_thread(self, probes: Probes) -> Training[None]:
        """Measures the step on one thread, beside the other programs.

        Its threads wait for each other there, which takes most of its time; one thread waits for
        none.
        """
        self._announce("the step on one thread, beside the other programs")
        with threads_of_torch(1):
            span = yield from probes.model()
        gain = span.rate / median(one.steps.rate for one in self._rounds)
        self._one_off = replace(
            self._one_off, one_thread_gain=gain, one_thread_freed=freed(span, 1)
        )

    def _try_larger(self, probes: Probes) -> Training[None]:
        """Measures larger batches in a program's own loop.

        Beside other programs it runs on one thread, where no thread waits for another.
        """
        one_thread = self._one_off.one_thread_gain
        if one_thread is None and self._step is None:
            rate = yield from self._rate_with_larger(probes)
            self._one_off = replace(self._one_off, larger_gain=rate and rate / self._model_rate)
        elif one_thread is not None:
            with threads_of_torch(1):
                rate = yield from self._rate_with_larger(probes)
            steps_rate = median(one.steps.rate for one in self._rounds)
            self._one_off = replace(
                self._one_off, one_thread_larger_gain=rate and rate / (one_thread * steps_rate)
            )

    @property
    def _model_rate(self) -> float:
        return median(one.model.rate for one in self._rounds)

    def _rate_with_larger(self, probes: Probes) -> Training[float | None]:
        """Returns images/s with batches four times as large; None if batches of this type cannot be
        joined.
        """
        self._announce("larger batches")
        # what the program raises meanwhile is no failure of its own (watched.py)
        self._program.step_may_fail = True
        try:
            larger = yield from probes.larger()
        finally:
            self._program.step_may_fail = False
        return larger.rate if larger else None

    def _look_at_loader(self, found: TrainingFigures) -> Training[list[Fix]]:
        """Finds out what an item spends its time with, and what other numbers of workers gain.

        Only if the loader costs time, or would without the other programs. Returns the fixes that
        were tried.
        """
        then = (
            figures(self._undisturbed, self._program.workers, self._program.burst)
            if self._undisturbed
            else None
        )

        waits = found.wait_share + found.start_share
        waits_then = then.wait_share + then.start_share if then else 0.0
        if max(waits, waits_then) < MIN_COST:
            return []
        if any(each.is_late for each in self._ends):
            self._leave_out("what an item spends its time with, other numbers of workers")
            return []

        # even after the limit: the cause depends on it, and it takes a second
        self._announce("what an item spends its time with")
        tried = list[Fix]()
        # tried alone then, or the other programs decide which number of workers looks best
        is_hidden = then is not None and waits < DOMINANT_WAIT

        try:
            self._items = self._program.profile(min(ITEMS_S, self._budget.seconds))
            if self._items:
                self._one_off = replace(
                    self._one_off, item_waits=self._items.blocked_s / self._items.seconds
                )
            for fix in self._program.other_workers(then or found, self._items):
                if self._is_late(0.8):
                    self._leave_out(fix.what)
                else:
                    tried.append((yield from self._predict_gain(fix, is_hidden)))
        except LoopEnded as end:
            self._leave_out("other numbers of workers", end)
        self._one_off = _with_gains(self._one_off, self._program.processes, tried)
        return tried

    # What would change it

    def _find_fixes(
        self, verdict: Verdict, found: TrainingFigures, tried: list[Fix]
    ) -> Training[list[Fix]]:
        """Returns the fixes that gain something, the surest first.

        Those that gain something only once the other programs have ended come last.
        """
        fixes = list(tried)
        for cause in (Cause(verdict.name, verdict.loss), *verdict.also):
            advised = advice(
                cause.name, found, self._one_off, self._program.workers, _cores(), self._items
            )
            for fix in [
                *self._program.fixes(cause.name),
                *advised,
                *remedies(cause.name, self._items),
            ]:
                if fix.what in [*(other.what for other in fixes), *self._left_out]:
                    continue
                if fix.program and self._is_late(0.9):
                    self._leave_out(fix.what)
                    continue
                # a LoopEnded stops the trials that need the loop, not the advice
                try:
                    fixes.append((yield from self._predict_gain(fix, cause.is_hidden)))
                except LoopEnded as end:
                    self._leave_out(fix.what, end)

        fixes = [
            fix for fix in fixes if fix.predicted is None or fix.predicted.estimate >= MIN_GAIN
        ]
        return sorted(
            fixes, key=lambda fix: (fix.is_hidden, -(fix.predicted.low if fix.predicted else 0))
        )

    def _predict_gain(self, fix: Fix, is_hidden: bool) -> Training[Fix]:
        """Returns the fix with its predicted gain.

        Another loader is trained with for one span, another model is run alone.

        Args:
            is_hidden: whether it can gain something only once the other programs have ended; the
                loader is run alone then, as it is where no loop is left to train.
        """
        self._announce(f"what it would gain: {fix.what}")
        program, changed = self._program, None
        rounds = self._undisturbed if is_hidden else self._rounds
        fix = replace(fix, is_hidden=is_hidden)

        try:
            if fix.threads:
                span = yield from self._train_on(fix.threads)
                return replace(
                    fix, predicted=gain_interval([span.rate / one.together.rate for one in rounds])
                )
            if fix.program is not None and fix.part == "loader":
                with fix.program.feed() as feed:
                    probes = Probes(fix.program, feed, self._budget.seconds)
                    # without start(): the rounds have warmed up the model
                    if not self._ends and not is_hidden:
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
                    probes = Probes(fix.program, feed, self._budget.seconds)
                    drive(probes.start(), step)
                    changed = drive(probes.model(), step)

            return replace(fix, predicted=predicted_gain(fix, program, rounds, changed))
        except Exception as error:
            # such as too little memory: the diagnosis is valid without this fix
            why = (str(error).splitlines() or [type(error).__name__])[0]
            return replace(fix, note=f"could not be tried: {why[:100]}", program=None)

    def _train_on(self, threads: int) -> Training[Span]:
        """Trains with the program as it is, its step on so many threads, for one span."""
        with threads_of_torch(threads), self._program.feed() as feed:
            return (yield from Probes(self._program, feed, self._budget.seconds).together())

    def _verify_first(self, fixes: list[Fix]) -> Training[list[Fix]]:
        """Makes the first fix that can be made, and measures what it gains."""
        budget = self._budget
        place = next((place for place, fix in enumerate(fixes) if fix.program), None)
        if budget.verify_pairs and place is not None:
            measured = yield from measured_gain(self._program, fixes[place], budget, self._announce)
            fixes[place] = replace(fixes[place], measured=measured)
        return fixes


def _measure_round(probes: Probes, number: int, count: int, announce: Announce) -> Training[Round]:
    """Measures each part once.

    The order is reversed in every second round, so that a machine that slows down favours no part.
    """
    spans: dict[str, Span] = {}
    for part in PARTS if number % 2 == 0 else PARTS[::-1]:
        announce(f"round {number + 1} of {count}: {part}")
        spans[part] = yield from getattr(probes, part)()
    return Round(**spans)


def _may_be_launch_bound(verdict: Verdict) -> bool:
    """Whether a larger batch is worth trying: nothing else was found, and memory has room."""
    nothing_else = verdict.name in ("model-bound", OTHER_PROGRAMS) and not verdict.also
    return (
        nothing_else
        and not torch.cuda.is_available()
        and LARGER * psutil.Process().memory_info().rss < memory_left()
    )


@contextlib.contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """Runs PyTorch's operators on so many threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


def measured_gain(
    program: TrainingProgram, fix: Fix, budget: ProbeBudget, announce: Announce
) -> Training[float | None]:
    """Returns the factor on images/s of the whole: the geometric mean over pairs of before and
    after, in ABBA order.
    """
    rates: dict[str, list[float]] = {"before": [], "after": []}
    for number in range(budget.verify_pairs):
        pair = [("before", program), ("after", fix.program or program)]
        for which, each in pair if number % 2 == 0 else pair[::-1]:
            announce(f"checking the fix: {which}, {number + 1} of {budget.verify_pairs}")
            with each.feed() as feed:
                # only a changed model has a step of its own
                own = each.step() if fix.part == "model" and each is fix.program else None
                probes = Probes(each, feed, budget.seconds)
                if own:
                    drive(probes.start(), own)
                    span = drive(probes.together(), own)
                else:
                    yield from probes.start()
                    span = yield from probes.together()
                rates[which].append(span.rate)

    gain = paired_ratio(rates["before"], rates["after"]).estimate
    return gain if math.isfinite(gain) else None


def _cores() -> int:
    return len(os.sched_getaffinity(0))
