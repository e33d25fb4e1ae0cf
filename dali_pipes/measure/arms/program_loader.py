"""The PyTorch DataLoader that a program of the user's trains with, as an arm.

Its process runs the program until its training begins, and measures there
(measure/program_process.py).
"""

from dataclasses import dataclass, field

from dali_pipes.backends.config import MAX_COUNT, Concurrency, LoaderConfig
from dali_pipes.checks import check_min
from dali_pipes.options import option


@dataclass(kw_only=True, slots=True)
class ProgramLoaderConfig(LoaderConfig):
    """The DataLoader of a program, outside the plan: for comparisons.

    Attributes:
        words: the program's file or module, and its arguments.
        place: the file and line that made the DataLoader.
        num_workers: those it has.
    """

    words: list[str] = field(default_factory=list)
    place: str = ""
    num_workers: int = option(0, check_min, 0, MAX_COUNT)

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency(max(1, self.num_workers), max(1, self.num_workers), 2 * self.num_workers)
