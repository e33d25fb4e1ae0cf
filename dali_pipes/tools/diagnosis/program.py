"""The training program that is diagnosed: batches, and the step on each of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dali_pipes.tools.diagnosis.window import Step


@dataclass(frozen=True, slots=True)
class Feed:
    """A loader that has been started.

    Attributes:
        batches: endless, epoch after epoch.
        starts_epoch: whether the next batch is the first of an epoch.
        resident: puts a batch on the device, if it is not there.
        slow: which of a batch's images took longest, as (name, seconds); called for the batches with the longest wait.
    """

    batches: Iterator[Any]
    starts_epoch: Callable[[], bool]
    resident: Callable[[Any], Any] = field(default=lambda batch: batch)
    slow: Callable[[Any], list[tuple[str, float]]] = field(default=lambda batch: [])


@dataclass(frozen=True, slots=True)
class Fix:
    """A possible change.

    Attributes:
        what: Hydra overrides, or a sentence where there are none.
        why: the reason, in a few words.
        program: the program with the change; None: it cannot be tried from here.
        part: "loader" or "model", the one that it changes.
        speeds_up: the calculated speed-up of each part, if it cannot be tried.
        note: side effects.
        predicted, measured: its gain, as a factor on images/s; None: unknown, or not measured.
    """

    what: str
    why: str
    program: "TrainingProgram | None" = None
    part: str = "loader"
    speeds_up: dict[str, float] = field(default_factory=dict)
    note: str = ""
    predicted: float | None = None
    measured: float | None = None


class TrainingProgram(Protocol):
    """A training program, in parts that can be run alone.

    Attributes:
        workers: processes or threads that make batches.
        burst: how many batches arrive at once: worker processes make one each at the same time.
        in_flight: batches that are made ahead; 0: loader and step alternate.
        paths: the file of each image, if known; they can be dropped from the page cache.
        data_bytes: of all files of the data set.
        decodes_on_gpu: whether the loader does.
        is_fetched: whether images come out of an object store.
    """

    workers: int
    burst: int
    in_flight: int
    paths: Sequence[Path]
    data_bytes: int
    decodes_on_gpu: bool
    is_fetched: bool

    def feed(self) -> AbstractContextManager[Feed]:
        """Starts the loader."""
        ...

    def step(self) -> Step:
        """The training step on a batch."""
        ...

    def transfer_size(self) -> tuple[int, bool]:
        """The bytes of a batch that are copied from the CPU to a GPU, and whether they are in page-locked memory."""
        ...

    def count(self, batch: Any) -> int:
        """How many images it holds."""
        ...

    def concat(self, batches: Sequence[Any]) -> Any:
        """One batch of all their images.

        Raises:
            TypeError: batches of this type cannot be joined.
        """
        ...

    def fixes(self, verdict: str) -> Sequence[Fix]:
        """Fixes to try, the most promising first."""
        ...
