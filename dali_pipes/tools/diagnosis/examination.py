"""The examination of a loop that somebody else drives: a stand-in until examine.py has one of its own.

The model beside the loader is not measured here: its window is that of the model alone.
"""

import itertools
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

from dali_pipes.tools.diagnosis.examine import WORTH, Diagnosis, ProbeBudget, _predicted
from dali_pipes.tools.diagnosis.probes import RESIDENT, Probes, Round, TrainingProgram
from dali_pipes.tools.diagnosis.verdict import OneOffFigures, advice, figures, judge
from dali_pipes.tools.diagnosis.window import Window, _counters, _ran


def examination(
    program: TrainingProgram, budget: ProbeBudget, announce: Callable[[str], None] = lambda text: None
) -> Generator[Any, None, Diagnosis]:
    """Each batch that it yields is to be trained on once; then it is resumed. It returns the diagnosis."""
    rounds = []
    with program.feed() as feed:
        announce("the first batches")
        resident = list(itertools.islice(feed.batches, RESIDENT))
        yield resident[0]
        probes = Probes(program, feed, budget.seconds)
        for number in range(budget.rounds):
            announce(f"round {number + 1} of {budget.rounds}: model")
            model = yield from _watch(itertools.cycle(resident), program, budget.seconds, lambda: False)
            announce(f"round {number + 1} of {budget.rounds}: loader")
            loader = probes.loader()
            announce(f"round {number + 1} of {budget.rounds}: together")
            for _ in range(program.in_flight):
                yield next(feed.batches)
            together = yield from _watch(feed.batches, program, budget.seconds, feed.starts_epoch)
            rounds.append(Round(model, loader, model, together))
    one_off = OneOffFigures()
    verdict, found = judge(rounds, one_off, program.workers, program.burst), figures(rounds, program.burst)
    possible = [*program.fixes(verdict.name), *advice(verdict.name, found, one_off, program.workers)]
    fixes = [_predicted(fix, program, rounds, budget, announce) for fix in possible]
    fixes = sorted((fix for fix in fixes if fix.predicted is None or fix.predicted >= WORTH), key=lambda fix: -(fix.predicted or 0))
    verdict = replace(verdict, confidence="medium" if verdict.confidence == "high" else verdict.confidence)
    return Diagnosis(verdict, found, one_off, fixes, rounds, [], None)


def _watch(
    batches: Iterator[Any], program: TrainingProgram, seconds: float, starts_epoch: Callable[[], bool]
) -> Generator[Any, None, Window]:
    """As window.watch, with the step between a yield and the next resumption."""
    images, blocked, waits = 0, 0.0, list[float | None]()
    before, begin = _counters(), time.monotonic()
    while time.monotonic() - begin < seconds or len(waits) < 3:
        first, asked = starts_epoch(), time.monotonic()
        batch = next(batches)
        waits.append(None if first else time.monotonic() - asked)
        images += program.count(batch)
        clock, ran = time.monotonic(), _ran()
        yield batch
        blocked += time.monotonic() - clock - (_ran() - ran)
    took, after = time.monotonic() - begin, _counters()
    grown: dict[str, Any] = {name: None if None in (before[name], after[name]) else after[name] - before[name] for name in before}
    return Window(
        images=images,
        seconds=took,
        cpu_s=grown["cpu_s"],
        waits_s=tuple(waits),
        gaps_s=None,
        blocked_s=blocked if _ran() else None,
        busy=grown["busy_s"] / max(grown["total_s"], 1e-9),
        throttled_s=grown["throttled_s"],
        memory_stall=None if grown["stalled_s"] is None else grown["stalled_s"] / took,
        alloc_retries=grown["alloc_retries"],
    )
