"""What became of each step, and what cannot be carried over."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dali_pipes.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the old loader.

    Attributes:
        text: as it prints itself.
        by: what carries it out now, or why nothing does.
    """

    text: str
    by: str


class NotConvertibleError(ConfigError):
    """A part of a DataLoader that dali_pipes cannot carry out in the same way.

    Attributes:
        part: its name, such as "ElasticTransform".
        steps: all steps of the transform, if it is one of them.
    """

    def __init__(self, part: str, problem: str, instead: str):
        super().__init__(f"{part} cannot be carried over: {problem}; {instead}")
        self.part, self.problem, self.instead = part, problem, instead
        self.steps: Sequence[Step] = ()


def refuse_unless(holds: Any, part: str, problem: str, instead: str) -> None:
    if not holds:
        raise NotConvertibleError(part, problem, instead)
