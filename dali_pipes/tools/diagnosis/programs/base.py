"""The training program that is diagnosed, and the changes that could be made to it.

`TrainingProgram` is what each kind of program implements; this folder has a file for each kind.
`Feed` is its loader, once started, and `Fix` is a change with its gain.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dali_pipes.tools.diagnosis.items.profile import ItemProfile
from dali_pipes.tools.diagnosis.measuring.training import Step
from dali_pipes.tools.diagnosis.verdict.figures import TrainingFigures


@dataclass(frozen=True, slots=True)
class Feed:
    """A loader that has been started.

    Attributes:
        batches: its batches without end, epoch after epoch.
        starts_epoch: tells whether the next batch is the first of an epoch.
        resident: puts a batch on the device, if it is not there.
        slow: returns which of a batch's images took longest, as (name, seconds); called for the
            batch that was waited for longest.
    """

    batches: Iterator[Any]
    starts_epoch: Callable[[], bool]
    resident: Callable[[Any], Any] = lambda batch: batch
    slow: Callable[[Any], list[tuple[str, float]]] = lambda batch: []


@dataclass(frozen=True, slots=True)
class Fix:
    """A change that may make training faster.

    Attributes:
        what: Hydra overrides, an option of a DataLoader, or a sentence where there is neither.
        why: the reason, in a few words.
        program: the program with the change; None: it cannot be tried from here.
        part: "loader" or "model", the part that it changes.
        speeds_up: by how much each part becomes faster if it cannot be tried: from, to, and perhaps
            what is likely between them.
        computes_less: whether a part that becomes faster also takes less CPU time, rather than wait
            less.
        note: side effects.
        predicted: its gain as a factor on images/s, with the interval that contains it; None:
            unknown.
        measured: its gain, with the change made; None: not measured.
        patch: the change of the program's text, as a unified diff; "" if it is none, or not known.
        threads: how many threads of PyTorch the step is to run on; None: as many as it does now.
        is_hidden: whether it gains this only once the other programs on this machine have ended.
    """

    what: str
    why: str
    program: "TrainingProgram | None" = None
    part: str = "loader"
    speeds_up: dict[str, tuple[float, ...]] = field(default_factory=dict)
    computes_less: bool = False
    note: str = ""
    predicted: "Gain | None" = None
    measured: float | None = None
    patch: str = ""
    threads: int | None = None
    is_hidden: bool = False


@dataclass(frozen=True, slots=True)
class Gain:
    """A factor on images/s, and the interval that it is expected in."""

    estimate: float
    low: float
    high: float


class TrainingProgram(ABC):
    """A training program, in parts that can be run alone.

    Attributes:
        workers: processes or threads that make batches; at least 1, the thread that trains.
        processes: worker processes of a DataLoader; None: there is no such option.
        burst: how many batches arrive at once: worker processes make one each at the same time.
        in_flight: batches that are made ahead; 0: loader and step alternate.
        works_beside: whether anything of the loader works while the step runs.
        paths: the file of each image, if known; they can be dropped from the page cache.
        data_bytes: size of all files of the data set.
        decodes_on_gpu: whether the loader decodes on the GPU.
        is_fetched: whether images come out of an object store.
        starts_anew: whether each epoch starts worker processes anew.
        epoch: number of batches of an epoch; None: unknown.
        uses_torch_threads: whether its step runs on PyTorch's threads.
        step_may_fail: whether its own loop is being given a batch that it may not accept.
    """

    workers: int
    processes: int | None = None
    burst: int
    in_flight: int
    works_beside = True
    paths: Sequence[Path] = ()
    data_bytes = 0
    decodes_on_gpu = is_fetched = False
    starts_anew = False
    epoch: int | None = None
    step_may_fail = False
    uses_torch_threads = True

    @abstractmethod
    def feed(self) -> AbstractContextManager[Feed]:
        """Starts the loader."""

    def step(self) -> Step | None:
        """Returns the training step on a batch; None if only the program's own loop can train."""
        return None

    @abstractmethod
    def transfer_size(self) -> tuple[int, bool]:
        """Returns the bytes of a batch that are copied from the CPU to a GPU, and whether they are
        in page-locked memory.
        """

    def count(self, batch: Any) -> int:
        """Returns how many images the batch holds."""
        return len(batch)

    def concat(self, batches: Sequence[Any]) -> Any:
        """Returns one batch of all their images; raises TypeError if batches of this type cannot be
        joined.
        """
        raise TypeError(f"batches of {type(self).__name__} cannot be joined")

    def profile(self, seconds: float) -> ItemProfile | None:
        """Makes items in this thread for so many seconds, and returns what they spend their time
        with; None if that cannot be seen.
        """
        return None

    def remarks(self) -> list[str]:
        """Returns what is wrong, or may cost time, as can be seen without measuring; with what to
        do instead.
        """
        return []

    def other_workers(self, figures: TrainingFigures, items: ItemProfile | None) -> list[Fix]:
        """Returns other settings of the loader's processes, to try before there is a verdict."""
        return []

    def fixes(self, verdict: str) -> list[Fix]:
        """Returns fixes to try, the most promising first; none for a program that is a fix."""
        return []
