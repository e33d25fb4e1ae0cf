"""What carries out planned batches: the interface of all backends, and of what is put together of
several.

    planned batches ──▶ Backend.stream ──▶ decoded batches, in the same order

A planned batch says everything: the images (a manifest's, or a program's own), and for each of them
the region, the size, the crop, the operations with their strengths. A backend draws nothing and
decides nothing, so any backend can make any batch, whichever made the one before.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.needs import refuse_needs
from dali_pipes.data.loose_images import LooseImages
from dali_pipes.data.manifest import Manifest
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.plan.transforms import Transform
from dali_pipes.system.memory import Need


@dataclass(frozen=True, slots=True)
class Job:
    """What a backend is made for.

    Attributes:
        transform: what its batches have in common, such as their shape and dtype. What is made of
            each image, a planned batch says.
        images: those of the first batches. Their sizes decide how much memory a decoder takes;
            which images a batch has, it says itself.
        batch_size: images of a full batch.
        device: where the batches arrive.
        epoch: batches of an epoch, of this rank; None: nobody knows.
        learned: what an earlier backend of the same loader has found out (`Backend.learned`), or
            the text of that which a state has; None: nothing.
    """

    transform: Transform
    images: Manifest | LooseImages
    batch_size: int
    device: torch.device
    epoch: int | None = None
    learned: Any = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a backend made of a planned batch, ready on the current stream.

    Attributes:
        groups: for each of the transform's `groups` the images of its V views, (V × N, C, H, W):
            all of one view before those of the next.
    """

    planned: PlannedBatch
    groups: tuple[torch.Tensor, ...]

    @property
    def images(self) -> torch.Tensor:
        """(N, C, H, W): the first view."""
        return self.groups[0][: len(self.planned)]

    def __len__(self) -> int:
        return len(self.planned)


class Description(NamedTuple):
    """What a backend says of itself.

    Attributes:
        text: how images are decoded and why, in one line.
        pixels: what makes them, if their last bits can depend on it; else None.
        gpu: on which it holds memory besides PyTorch's; None: there is none.
    """

    text: str
    pixels: str | None = None
    gpu: torch.device | None = None


class Backend(ABC):
    """One way to carry out planned batches. A subclass creates what all streams use in `prepare`.

    Args:
        config: its options, with the number of cores set.

    Attributes:
        makes: what it makes besides crops, resizes and flips, by the names of needs.py. All else is
            refused by name, so that a backend that is older than an option does not leave it out
            without a word.

    Raises:
        ConfigError: this backend cannot do what is asked for.
    """

    makes: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, job: Job, config: Any):
        self.job, self.config = job, config.on_device(job.device)
        refuse_needs(job.transform, job.images, self.makes, type(config))
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Creates what all streams use, and refuses what it cannot do."""

    @abstractmethod
    def stream(self, planned: Iterator[PlannedBatch]) -> Iterator[Decoded]:
        """Makes these batches and yields them in order.

        There may be no end to `planned`, which goes on from epoch to epoch, so a backend takes a
        bounded number of batches ahead, in any one thread at a time. If there is an end, the stream
        ends there: another backend may make what comes next. A new stream has to end the one
        before; streams of several backends may be open at once. Every planned batch is a separate
        object, by whose identity a backend may recognize it (`InWork`).

        Raises:
            ConfigError: an option is wrong; the run ends with it.
            Exception: a file cannot be decoded. The loader finds out which one.
        """

    @abstractmethod
    def describe(self) -> Description: ...

    @property
    def learned(self) -> Any:
        """What it has found out while it worked, for the one that takes its place after a failure
        or a resume. States keep the `str` of it. None: nothing.
        """
        return None

    def close(self) -> None:  # noqa: B027  nothing to end
        """Ends all threads and processes; harmless when called twice."""

    def __repr__(self) -> str:
        return f"{type(self.config).__name__} on {self.job.device}"

    @classmethod
    def functions_on(cls, config: Any, device: torch.device) -> torch.device:
        """Where the functions of the user's in `augment` run, if batches arrive on `device`.

        Args:
            config: as for `memory_needs`.
        """
        return torch.device("cpu")

    @classmethod
    def memory_needs(
        cls, config: Any, transform: Transform, batch_size: int, sizes: NDArray[np.int64]
    ) -> Iterator[Need]:
        """The memory that is certain to be needed for images of `sizes`, (N, 2) heights and widths.

        It counts batches made ahead, and images while they are decoded.

        Args:
            config: as a backend has it: with the number of cores set, and decided for a device.
        """
        return iter(())


class InWork:
    """Planned batches on their way through a library, which keeps a number with each.

    The number is the `id()` of the object, which no other object has while it is kept here. So a
    batch gets its own labels whatever was interrupted or left out before; the order of arrival
    could not promise that.
    """

    def __init__(self, planned: Iterator[PlannedBatch]):
        self._planned = planned
        self._by_number: dict[int, PlannedBatch] = {}

    def __iter__(self) -> Iterator[PlannedBatch]:
        """The planned batches for the library; `id()` of each is its number."""
        for batch in self._planned:
            self._by_number[id(batch)] = batch
            yield batch

    def take(self, number: int) -> PlannedBatch:
        """Removes and returns the planned batch with this number."""
        return self._by_number.pop(number)
