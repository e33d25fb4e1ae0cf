"""The loops of a user's program over its loaders."""

from dataclasses import dataclass


@dataclass(slots=True)
class Loop:
    """All iterations over one loader from one place of the program.

    Attributes:
        place: the file and line that takes its batches.
        waited_s: seconds inside next().
        taken, stepped: batches of its last iterator, and whether an optimizer has stepped since the
            last of them.
        single: iterators in a row that were left after one batch on which an optimizer has stepped.
    """

    place: str
    batches: int = 0
    waited_s: float = 0.0
    optimizer_steps: int = 0
    taken: int = 0
    stepped: bool = False
    single: int = 0

    def __str__(self) -> str:
        return f"{self.place}: {self.batches} batches, {self.waited_s:.1f} s of waiting for them"
