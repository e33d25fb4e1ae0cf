"""The examination: rounds of all parts, what is measured once, the verdict, and the fixes with their gain."""

import contextlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import psutil
import torch

from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.memory import memory_left
from dali_pipes.tools.diagnosis.advice import advice, remedies
from dali_pipes.tools.diagnosis.items import ItemProfile
from dali_pipes.tools.diagnosis.probes import LARGER, Fix, Gain, Probes, TrainingProgram, copy_seconds
from dali_pipes.tools.diagnosis.verdict import COSTS, FEWER, Figures, OneOffFigures, Verdict, figures, judge
from dali_pipes.tools.diagnosis.window import LoopEnded, Round, Step, Training, Window, drive

WORTH = 1.03  # a smaller gain is not proposed
PARTS = ("model", "loader", "together")
ITEMS_S = 1.0  # seconds in which items are profiled
_MARGIN = 0.2  # of a predicted gain, beside the spread of the rounds
Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings.

    Attributes:
        items: what an item spends its time with; None: the program does not show its items.
        slow: the images of the batch that was waited for longest, as (name, seconds), the slowest first; for stragglers only.
        resident: the share of the files that was in the page cache when the cold run began; None: unknown, or not run.
        seconds: how long it took.
        left_out: what was not measured for want of time, in words.
        remarks: what is wrong with the program, or may cost time, as it can be seen without measuring; in words.
    """

    verdict: Verdict
    figures: Figures
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
    """The time to spend: rounds, minimum seconds of each window, and pairs of runs with and without the first fix.

    Attributes:
        limit_s: from then on no further round and no further fix is begun; one round is always measured.
    """

    rounds: int = 3
    seconds: float = 3.0
    verify_pairs: int = 0
    cold: bool = True
    limit_s: float = math.inf

    @property
    def steps(self) -> int:
        """About how many steps `examine` announces."""
        return 1 + len(PARTS) * self.rounds + 3 + 4 + 2 * self.verify_pairs


def examine(program: TrainingProgram, budget: ProbeBudget, announce: Announce = lambda text: None) -> Diagnosis:
    """Runs the program in parts and as a whole, for a few windows each, with its own step.

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
    """The same for a program whose own loop trains on the batches that this yields.

    Args:
        step: what trains; None: the program's own loop, which may fail at a larger batch, so that it is tried last.
        rounds: where complete rounds are put, for who wants to know whether there is one.

    Raises:
        LoopEnded: it was thrown in before one round was complete; later it only leaves out what needs training or time.
    """
    begin, left_out, ended = time.monotonic(), list[str](), list[LoopEnded]()
    one_off, resident, slow = OneOffFigures(), None, list[tuple[str, float]]()

    def is_late(share: float = 1.0) -> bool:
        return time.monotonic() - begin > share * budget.limit_s or any(each.is_late for each in ended)

    with program.feed() as feed:
        announce("the first batches")
        probes, rounds = Probes(program, feed, budget.seconds), [] if rounds is None else rounds
        yield from probes.start()
        try:
            for number in range(budget.rounds):
                before = time.monotonic()
                rounds.append((yield from _round(probes, number, budget.rounds, announce)))
                last = number + 1 == budget.rounds
                if not last and time.monotonic() - begin + (time.monotonic() - before) > 0.6 * budget.limit_s:
                    left_out.append(f"{budget.rounds - number - 1} of {budget.rounds} rounds")
                    break
            one_off, resident = yield from _one_off(program, probes, rounds, budget, announce, step)
        except LoopEnded as end:
            if not rounds:
                raise
            ended.append(end)
            missing = budget.rounds - len(rounds)
            left_out.append(f"{missing} of {budget.rounds} rounds, and " * bool(missing) + "what needs further steps of the loop")
        slow = sorted(feed.slow(probes.slowest), key=lambda each: -each[1])[:5] if probes.slowest is not None else []

    found, items, tried = figures(rounds, program.workers, program.burst), None, list[Fix]()
    if found.wait_share + found.start_share >= COSTS and any(each.is_late for each in ended):
        left_out.append("what an item spends its time with, other numbers of workers")
    elif found.wait_share + found.start_share >= COSTS:  # also past the limit: the cause rests on it, and it takes a second
        try:
            announce("what an item spends its time with")
            items = program.profile(min(ITEMS_S, budget.seconds))
            if items:
                one_off = replace(one_off, item_waits=items.blocked_s / items.seconds)
            for fix in program.other_workers(found, items):
                if is_late(0.8):
                    left_out.append(fix.what)
                else:
                    tried.append((yield from _predicted(fix, program, rounds, budget, announce, not ended)))
        except LoopEnded as end:
            ended.append(end)
            left_out.append("other numbers of workers")
        one_off = _with_gains(one_off, program.processes, tried)
    verdict = judge(rounds, one_off, program.workers, program.burst)
    if step is None and not ended and not is_late(0.8) and _may_be_launch_bound(verdict):
        try:
            one_off = replace(one_off, larger_gain=(yield from _larger_gain(program, probes, rounds, announce)))
        except LoopEnded as end:
            ended.append(end)
            left_out.append("larger batches")
        verdict = judge(rounds, one_off, program.workers, program.burst)

    fixes = list(tried)
    for name in [verdict.name, *(cause.name for cause in verdict.also)]:
        advised = [*advice(name, found, one_off, program.workers, _cores(), items), *remedies(name, items)]
        for fix in [*program.fixes(name), *advised]:
            if fix.what in [*(other.what for other in fixes), *left_out]:
                continue
            if fix.program and is_late(0.9):
                left_out.append(fix.what)
                continue
            try:
                fixes.append((yield from _predicted(fix, program, rounds, budget, announce, not ended)))
            except LoopEnded as end:
                ended.append(end)
                left_out.append(fix.what)
    fixes = [fix for fix in fixes if fix.predicted is None or fix.predicted.estimate >= WORTH]
    fixes = sorted(fixes, key=lambda fix: -(fix.predicted.low if fix.predicted else 0))  # the surest first
    for place, fix in enumerate(fixes):
        if budget.verify_pairs and fix.program:
            fixes[place] = replace(fix, measured=(yield from measured_gain(program, fix, budget, announce)))
            break
    slow = slow if verdict.name == "straggler" else []
    return Diagnosis(
        verdict,
        found,
        one_off,
        fixes,
        rounds,
        items,
        slow,
        resident,
        time.monotonic() - begin,
        tuple(left_out),
        tuple(program.remarks()),
    )


def _round(probes: Probes, number: int, count: int, announce: Announce) -> Training[Round]:
    """In this order, and in the next round in reverse, so that a machine that slows down favours no part."""
    windows: dict[str, Window] = {}
    for part in PARTS if number % 2 == 0 else PARTS[::-1]:
        announce(f"round {number + 1} of {count}: {part}")
        windows[part] = yield from getattr(probes, part)()
    return Round(**windows)


def _one_off(
    program: TrainingProgram,
    probes: Probes,
    rounds: list[Round],
    budget: ProbeBudget,
    announce: Announce,
    step: Step | None,
) -> Training[tuple[OneOffFigures, float | None]]:
    """The measurements made once, and the share of cold files that were still cached."""
    larger_gain = None
    if step and not torch.cuda.is_available():  # on a GPU the profiler shows how busy it is
        with contextlib.suppress(Exception):  # a user's step may raise anything at a batch of another size
            larger_gain = drive(_larger_gain(program, probes, rounds, announce), step)
    cold, resident = None, None
    if budget.cold and program.paths:
        announce("files that are not in memory")
        cold, resident = yield from probes.cold()
    one_off = OneOffFigures(
        larger_gain=larger_gain,
        cold_rate=cold.rate if cold else None,
        data_fits=program.data_bytes < memory_left(),
        decodes_on_gpu=program.decodes_on_gpu,
        is_fetched=program.is_fetched,
        starts_anew=program.starts_anew,
    )
    if torch.cuda.is_available():
        announce("the GPU during a step")
        seconds = median(one.together.seconds / len(one.together.waits_s) for one in rounds)
        copied, pinned = program.transfer_size()
        one_off = replace(
            one_off,
            device_busy=(yield from probes.busy_share()),
            syncs=(yield from probes.count_syncs()),
            transfer_share=copy_seconds(copied, pinned) / seconds if copied else 0.0,
        )
    return one_off, resident


def _larger_gain(program: TrainingProgram, probes: Probes, rounds: list[Round], announce: Announce) -> Training[float | None]:
    """The factor on images/s with batches four times as large; None if batches of this type cannot be joined."""
    announce("larger batches")
    program.step_may_fail = True
    try:
        larger = yield from probes.larger()
    finally:
        program.step_may_fail = False
    return larger.rate / median(one.model.rate for one in rounds) if larger else None


def _may_be_launch_bound(verdict: Verdict) -> bool:
    """Whether a larger batch, to which a loop of one's own may not be used, is worth trying, and there is room for it."""
    resident = psutil.Process().memory_info().rss
    return verdict.name == "model-bound" and not torch.cuda.is_available() and LARGER * resident < memory_left()


def _with_gains(one_off: OneOffFigures, now: int | None, tried: list[Fix]) -> OneOffFigures:
    """With what other numbers of worker processes would gain; 1 where it is not certain that they gain anything."""
    gains: dict[bool, list[float]] = {True: [], False: []}
    for fix in tried:
        count = fix.program.processes if fix.program else None
        if fix.predicted and count is not None and now is not None and count != now:
            is_certain = fix.predicted.low / (1 - _MARGIN) > FEWER  # in every round
            gains[count > now].append(fix.predicted.estimate if is_certain else min(fix.predicted.estimate, 1.0))
    fewer, more = (max(gains[is_more], default=None) for is_more in (False, True))
    return replace(one_off, fewer_gain=fewer, more_gain=more, is_serial=now == 0)


def _predicted(
    fix: Fix, program: TrainingProgram, rounds: list[Round], budget: ProbeBudget, announce: Announce, trains: bool
) -> Training[Fix]:
    """The fix with its predicted gain: another loader is trained with for one window, another model is run alone.

    Args:
        trains: whether the loop is still there to train; else the loader is run alone as well.
    """
    announce(f"what it would gain: {fix.what}")
    changed: Window | None = None
    try:
        if fix.program is not None and fix.part == "loader":
            with fix.program.feed() as feed:
                probes = Probes(fix.program, feed, budget.seconds)
                if trains:  # the model has been warmed up by the rounds
                    trained = yield from probes.together()
                    return replace(fix, predicted=_interval([trained.rate / one.together.rate for one in rounds]))
                changed = yield from probes.loader()
        elif fix.program is not None and (step := fix.program.step()):
            with fix.program.feed() as feed:
                probes = Probes(fix.program, feed, budget.seconds)
                drive(probes.start(), step)
                changed = drive(probes.model(), step)
        return replace(fix, predicted=predicted_gain(fix, program, rounds, changed))
    except Exception as error:  # such as too little memory: the diagnosis is valid without this fix
        why = (str(error).splitlines() or [type(error).__name__])[0]
        return replace(fix, note=f"could not be tried: {why[:100]}", program=None)


def pace(model: Window, loader: Window, serial: bool = False, cores: int | None = None) -> float:
    """Images/s that both allow together: the slower one's, or what the cores can do for both. `serial`: they alternate."""
    if serial:
        return 1 / (1 / model.rate + 1 / loader.rate)
    cpu = max(model.cpu_s / model.images + loader.cpu_s / loader.images, 1e-9)
    return min(model.rate, loader.rate, (cores or available_cpus()) / cpu)


def predicted_gain(fix: Fix, program: TrainingProgram, rounds: list[Round], changed: Window | None) -> Gain | None:
    """The factor on images/s of the whole.

    The interval holds the gains of all rounds, over the pace of training as it was calculated and as it was measured.

    Args:
        changed: the part that the fix changes, as it runs alone then; None: `speeds_up` says by how much.
    """
    gains = list[float]()
    if changed is None and not fix.speeds_up:
        return None
    for one in rounds:
        serial = not program.in_flight
        before = pace(one.steps, one.loader, serial)
        for factors in zip(*fix.speeds_up.values(), strict=True) if fix.speeds_up else [()]:
            parts, cores = {"model": one.steps, "loader": one.loader}, available_cpus()
            if changed is not None and fix.program is not None:
                parts[fix.part], serial = changed, not fix.program.in_flight
            else:  # the same work in less time; for as much CPU time where it only waits less
                for part, factor in zip(fix.speeds_up, factors, strict=True):
                    cpu_s = parts[part].cpu_s / (factor if fix.computes_less else 1)
                    parts[part] = replace(parts[part].scaled(1 / factor), cpu_s=cpu_s)
                cores = _cores()
            after = pace(parts["model"], parts["loader"], serial, cores)
            gains += [after / before, after / one.together.rate]
    return _interval(gains)


def _interval(gains: list[float]) -> Gain:
    return Gain(median(gains), min(gains) * (1 - _MARGIN), max(gains) * (1 + _MARGIN))


def measured_gain(program: TrainingProgram, fix: Fix, budget: ProbeBudget, announce: Announce) -> Training[float | None]:
    """The factor on images/s of the whole, before and after in ABBA order: the geometric mean over the pairs."""
    rates: dict[str, list[float]] = {"before": [], "after": []}
    for number in range(budget.verify_pairs):
        pair = [("before", program), ("after", fix.program or program)]
        for which, each in pair if number % 2 == 0 else pair[::-1]:
            announce(f"checking the fix: {which}, {number + 1} of {budget.verify_pairs}")
            with each.feed() as feed:
                own = each.step() if fix.part == "model" and each is fix.program else None
                probes = Probes(each, feed, budget.seconds)
                if own:
                    drive(probes.start(), own)
                    window = drive(probes.together(), own)
                else:
                    yield from probes.start()
                    window = yield from probes.together()
                rates[which].append(window.rate)
    gain = paired_ratio(rates["before"], rates["after"]).estimate
    return gain if math.isfinite(gain) else None


def _cores() -> int:
    return len(os.sched_getaffinity(0))
