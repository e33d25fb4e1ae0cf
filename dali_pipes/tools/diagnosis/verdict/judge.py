"""The verdict of all rounds together, with its confidence.

rounds of spans + OneOffFigures
-> figures.py: medians over the rounds, and what the other programs on the machine take
-> rules.py: the causes that cost a tenth of the time or more
-> judge: the verdict of all rounds together, if most of them give the same one alone
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dali_pipes.tools.diagnosis.measuring.span import Round
from dali_pipes.tools.diagnosis.verdict.figures import OneOffFigures, median_figures
from dali_pipes.tools.diagnosis.verdict.rules import Cause, find_causes

CERTAIN = 0.2  # share of the time from which on a cause is certain
STARVED = ("cgroup-throttled", "memory-bound")  # they slow down everything else, and come first


@dataclass(frozen=True, slots=True)
class Verdict:
    """One of `VERDICTS`, and what else costs time.

    Attributes:
        confidence: "high": every round gives this verdict, and it costs more than what is named
            beside it; "medium": most rounds do; "low": in all other cases, which are
            "inconclusive".
        rounds: the verdict of each round.
        also: other causes that cost a tenth of the time or more, the dearest first.
        loss: the share of the time that the verdict's cause costs.
    """

    name: str
    confidence: str
    rounds: list[str]
    also: tuple[Cause, ...] = ()
    loss: float = 0.0


def judge(rounds: Sequence[Round], one_off: OneOffFigures, workers: int, burst: int) -> Verdict:
    """Returns the verdict of all rounds together, if most of them give the same one alone; else
    "inconclusive".

    Rounds that are all prep-bound agree, even if they differ in why the loader is too slow.
    """
    names = [
        find_causes(median_figures([one], workers, burst, one_off), one_off, workers)[0].name
        for one in rounds
    ]

    first, *also = find_causes(median_figures(rounds, workers, burst, one_off), one_off, workers)
    agreeing = sum(_kind(name) == _kind(first.name) for name in names)
    if agreeing * 2 <= len(names):
        return Verdict("inconclusive", "low", names, (first, *also))

    # without a look inside the step, "model-bound" only says that nothing else was found
    looked_inside = one_off.larger_gain is not None or one_off.device_busy is not None
    if first.name == "model-bound":
        is_dear = looked_inside
    else:
        is_dear = first.loss >= CERTAIN and _leads(first, also)
    certain = set(names) == {first.name} and len(names) > 1 and is_dear
    return Verdict(first.name, "high" if certain else "medium", names, tuple(also), first.loss)


def _kind(name: str) -> str:
    """Returns the verdict without the words in brackets, as "prep-bound"."""
    return name.partition(" (")[0]


def _leads(first: Cause, also: Sequence[Cause]) -> bool:
    return first.name in STARVED or all(first.loss >= 1.25 * other.loss for other in also)
