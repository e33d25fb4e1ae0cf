"""What an examination found."""

from dataclasses import dataclass

from dali_pipes.tools.diagnosis.items.profile import ItemProfile
from dali_pipes.tools.diagnosis.measuring.span import Round
from dali_pipes.tools.diagnosis.programs.base import Fix
from dali_pipes.tools.diagnosis.verdict.figures import OneOffFigures, TrainingFigures
from dali_pipes.tools.diagnosis.verdict.judge import Verdict


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
