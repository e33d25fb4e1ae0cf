"""The PyTorch DataLoader that a program of the user's trains with, as an arm.

The process of a trial runs the program until its training begins, and measures there
(measure/program_trial.py).
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
        is_module: whether it is a module.
        flags: options of python itself.
        number: which of the DataLoaders that the program has made, from 1.
        place: the file and line that made it.
        num_workers: those it has.
        starts_in: seconds in which the program comes to its training.
    """

    words: list[str] = field(default_factory=list)
    is_module: bool = False
    flags: list[str] = field(default_factory=list)
    number: int = 1
    place: str = ""
    num_workers: int = option(0, check_min, 0, MAX_COUNT)
    starts_in: float = 0.0

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency(max(1, self.num_workers), max(1, self.num_workers), 2 * self.num_workers)
