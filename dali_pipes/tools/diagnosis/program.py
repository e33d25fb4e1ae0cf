"""What is diagnosed: batches, and what is done with each of them."""

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
        resident: a batch as it is when it lies on the device.
        slow: which of a batch's images took longest, as (name, seconds); asked of the batches that were waited for longest.
    """

    batches: Iterator[Any]
    starts_epoch: Callable[[], bool]
    resident: Callable[[Any], Any] = field(default=lambda batch: batch)
    slow: Callable[[Any], list[tuple[str, float]]] = field(default=lambda batch: [])


@dataclass(frozen=True, slots=True)
class Fix:
    """Something that could be changed.

    Attributes:
        what: Hydra overrides, or a sentence where there are none.
        why: in a few words.
        program: the same with the change made; None: it cannot be tried from here.
        part: "loader" or "model", whichever it changes.
        speeds_up: by which factor it is calculated to make a part faster, where it cannot be tried.
        note: what else it changes.
    """

    what: str
    why: str
    program: "TrainingProgram | None" = None
    part: str = "loader"
    speeds_up: dict[str, float] = field(default_factory=dict)
    note: str = ""


class TrainingProgram(Protocol):
    """A training program, in parts that can be run alone.

    Attributes:
        workers: processes or threads that make batches.
        burst: how many batches come at once: worker processes make one each at the same time.
        in_flight: batches that are made ahead; 0: loader and step take turns.
        paths: the file of each image, where they are known; they can be put out of the page cache.
        data_bytes: of all files of the data set.
        decodes_on_gpu: whether the loader does.
    """

    workers: int
    burst: int
    in_flight: int
    paths: Sequence[Path]
    data_bytes: int
    decodes_on_gpu: bool

    def feed(self) -> AbstractContextManager[Feed]:
        """Starts the loader."""
        ...

    def step(self) -> Step:
        """What is done with a batch."""
        ...

    def transfer_size(self) -> tuple[int, bool]:
        """The bytes of a batch that go from the CPU to a GPU, and whether they lie in page-locked memory."""
        ...

    def count(self, batch: Any) -> int:
        """How many images it holds."""
        ...

    def concat(self, batches: Sequence[Any]) -> Any:
        """One batch of all their images.

        Raises:
            TypeError: nobody knows how.
        """
        ...

    def fixes(self, verdict: str, advice: Fix | None) -> list[Fix]:
        """What could be tried, the likeliest first; `advice` is what can only be told, with what it is calculated to gain."""
        ...
