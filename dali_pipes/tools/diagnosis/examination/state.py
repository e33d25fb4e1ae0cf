"""What an examination knows so far, and how much of its time is left."""

import time
from dataclasses import dataclass, field
from statistics import median

from dali_pipes.tools.diagnosis.examination.budget import Announce, ProbeBudget
from dali_pipes.tools.diagnosis.items.profile import ItemProfile
from dali_pipes.tools.diagnosis.measuring.span import Round
from dali_pipes.tools.diagnosis.measuring.training import LoopEnded, Step
from dali_pipes.tools.diagnosis.programs.base import TrainingProgram
from dali_pipes.tools.diagnosis.verdict.figures import (
    OneOffFigures,
    TrainingFigures,
    median_figures,
)


@dataclass(slots=True)
class ExaminationState:
    """The state of the examination of one program.

    Attributes:
        step: what trains; None: the program's own loop.
        rounds: the complete rounds.
        undisturbed: the rounds as they would be without other programs; empty if there are none.
        left_out: what was not measured, in words.
        ends: why the loop does not go on; empty while it does.
        resident: see `Diagnosis`.
    """

    program: TrainingProgram
    budget: ProbeBudget
    announce: Announce
    step: Step | None
    rounds: list[Round]
    undisturbed: list[Round] = field(default_factory=list)
    one_off: OneOffFigures = field(default_factory=OneOffFigures)
    items: ItemProfile | None = None
    resident: float | None = None
    left_out: list[str] = field(default_factory=list)
    ends: list[LoopEnded] = field(default_factory=list)
    begin: float = field(default_factory=time.monotonic)

    def is_late(self, share: float = 1.0) -> bool:
        """Whether this share of the time is over, or the loop has ended since no time was left."""
        spent = time.monotonic() - self.begin > share * self.budget.limit_s
        return spent or any(end.is_late for end in self.ends)

    def leave_out(self, what: str, end: LoopEnded | None = None) -> None:
        self.left_out.append(what)
        self.ends += [end] if end else []

    def figures(self) -> TrainingFigures:
        return median_figures(self.rounds, self.program.workers, self.program.burst, self.one_off)

    @property
    def model_rate(self) -> float:
        return median(one.model.rate for one in self.rounds)
