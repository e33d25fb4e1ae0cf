"""Backends at work: a `BackendLine` for each kind of rows, and which kinds get one.

A backend takes some planned batches before it gives the first one back. While somebody waits for a
batch, its line reads further works, as far as that is allowed. After that the backend gets planned
batches of one small picture, which push the others through. So no stream has to end with an epoch,
and a kind that comes seldom holds nothing up.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dali_pipes.adapters.lazy.cells import Cell
from dali_pipes.adapters.lazy.compiler.batches import (
    Room,
    RowKind,
    finish,
    images_of,
    plan_batch,
    plan_filler,
    transform_of,
)
from dali_pipes.adapters.lazy.compiler.row import Row
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.steps.step import NoPlace
from dali_pipes.backends.backend import Backend, Decoded, Job
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig, DaliOptions
from dali_pipes.backends.registry import load_backend
from dali_pipes.errors import ConfigError
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.system.modes import in_own_modes

FEW = 4  # pictures of a kind that come before it gets a backend
MOST_LINES = 8  # backends
MOST_FAILURES = 3  # of a line's backends, one after the other, each before its first batch
_MOST_MET = 4096  # kinds that have come without a backend

ReadMore = Callable[[], bool]


@dataclass(eq=False, slots=True)
class Item:
    """One picture of a work: `cell.rows[place]` is its recipe.

    Attributes:
        future: what is made as noted.
    """

    cell: Cell
    place: int
    recipe: Recipe
    future: "Future[Any]" = field(init=False)

    def keep(self, made: Any, device: torch.device) -> None:
        """Puts what was made in its place."""
        self.cell.rows[self.place] = made.to(device) if isinstance(made, torch.Tensor) else made


@dataclass(eq=False)
class LinePart:
    """The pictures of a work that are in one planned batch.

    Attributes:
        images: what the backend makes of them, as of `finish`; None: it has not yet.
    """

    line: "BackendLine"
    items: list[Item]
    rows: list[Row]
    planned: PlannedBatch
    images: torch.Tensor | None = None


Pairs = list[tuple[Item, Row]]


class BackendLine:
    """A backend for rows of one kind, and the planned batches on their way through it.

    Args:
        room: for which operations and steps the backend is made.
        batch_size: pictures of its largest batch.
        read_more: reads and plans one work more; False: it may not, or there is none.

    Attributes:
        failures: how often its backend failed since it last made a batch.
        count: how many pictures it made.
    """

    def __init__(self, kind: RowKind, room: Room, batch_size: int, read_more: ReadMore):
        self.kind, self.room, self.batch_size = kind, room, batch_size
        self._read_more = read_more
        self._waiting: deque[LinePart] = deque()  # not in the backend yet
        self._inside: dict[int, LinePart] = {}  # by the id of the planned batch
        self._backend: Backend | None = None
        self._stream: Iterator[Decoded] | None = None
        self._filler = plan_filler(kind, room)
        self.failures = self.count = 0

    @in_own_modes
    def start(self, config: LoaderConfig, device: torch.device) -> None:
        """Starts a backend, in the place of one that has failed.

        Raises:
            ConfigError: one of these options cannot make what this line is for.
        """
        self.close()
        self._waiting, self._inside = deque(self.unmade), {}
        transform = transform_of(self.kind, self.room)
        job = Job(transform, self._filler.images, self.batch_size, device)
        self._backend = load_backend(config)(job, config)

    def send(self, pairs: Pairs) -> list[LinePart]:
        """Plans these pictures, for all of which there is room."""
        parts = []
        for first in range(0, len(pairs), self.batch_size):
            items, rows = map(list, zip(*pairs[first : first + self.batch_size], strict=True))
            images = images_of([item.recipe for item in items])
            parts.append(
                LinePart(self, items, rows, plan_batch(self.kind, self.room, rows, images))
            )
        self._waiting.extend(parts)
        return parts

    @in_own_modes
    def wait_for(self, part: LinePart) -> None:
        """Returns when this part is made. They are made in the order in which they were sent.

        Raises:
            Exception: the backend failed.
        """
        if self._stream is None:
            assert self._backend
            # not before a part is waited for: a backend may take all that may be read at once
            self._stream = self._backend.stream(self._feed())
        while part.images is None:
            decoded = next(self._stream)
            if came := self._inside.pop(id(decoded.planned), None):
                came.images = finish(decoded.images, self.kind, came.rows)
                self.failures, self.count = 0, self.count + len(came.items)

    def _feed(self) -> Iterator[PlannedBatch]:
        while True:
            while not self._waiting and self._read_more():
                pass
            if self._waiting:
                part = self._waiting.popleft()
                self._inside[id(part.planned)] = part
                yield part.planned
            else:
                # a new object, as backends know planned batches by their identity
                yield replace(self._filler)

    @property
    def unmade(self) -> list[LinePart]:
        """The parts that are not made yet, in order."""
        return [*self._inside.values(), *self._waiting]

    def drop(self, part: LinePart) -> None:
        """Does not make this part."""
        self._inside.pop(id(part.planned), None)
        if part in self._waiting:
            self._waiting.remove(part)

    def forget(self) -> None:
        """Nobody waits for its parts any more."""
        self._waiting.clear()
        # the backend makes them all the same; they are recognized by nobody then
        self._inside.clear()

    def describe(self) -> str:
        """How many pictures it made, of which kind, and how."""
        height, width = self.kind.shape
        how = self._backend.describe().text if self._backend else "closed"
        return f"{self.count} pictures of {width} × {height} pixels: {how}"

    def close(self) -> None:
        """Ends the backend; harmless when called twice."""
        if self._backend:
            self._backend.close()
        self._backend = self._stream = None


class Lines:
    """Which kinds have a line.

    Args:
        config, device, batch_size: as of `Executor`, the config with its number of cores.
        read_more: as of `BackendLine`.
    """

    def __init__(
        self, config: LoaderConfig, device: torch.device, batch_size: int, read_more: ReadMore
    ):
        self.config, self.device, self.batch_size = config, device, batch_size
        self._read_more = read_more
        self._lines: dict[RowKind, BackendLine] = {}
        self._met: dict[RowKind, list[Row]] = {}
        self._refused: dict[RowKind, str] = {}  # kinds that have no line, and why

    def find(self, kind: RowKind, rows: list[Row]) -> BackendLine:
        """The line of a kind, of which these rows have come.

        Raises:
            NoPlace: it has none.
        """
        if kind in self._refused:
            raise NoPlace(self._refused[kind])
        if line := self._lines.get(kind):
            return line
        if len(self._met) >= _MOST_MET:
            self._met.clear()
        met = self._met.setdefault(kind, [])
        met += rows
        if len(met) < FEW:
            raise NoPlace("too few pictures are like it")
        if len(self._lines) >= MOST_LINES:
            del self._met[kind]
            raise NoPlace(f"there are more than {MOST_LINES} kinds of pictures")
        return self._open(kind, Room.of(self._met.pop(kind)), max(len(rows), self.batch_size))

    def _open(self, kind: RowKind, room: Room, batch_size: int) -> BackendLine:
        line = BackendLine(kind, room, batch_size, self._read_more)
        try:
            line.start(self._config_for(kind), self.device)
        except ConfigError as error:
            # options that no kind gets along with are the user's to change
            if not self._lines and not self._refused and not kind.has_steps:
                raise
            self._refused[kind] = str(error)
            raise NoPlace(str(error)) from error
        self._lines[kind] = line
        return line

    def _config_for(self, kind: RowKind) -> LoaderConfig:
        config = self.config
        if kind.has_steps and isinstance(config, DaliOptions) and config.graph_finishes:
            # DALI's graph has no operators for Pillow's warps and resizes of whole images
            return DaliConfig(
                device="cpu", num_threads=config.num_threads, read_threads=config.read_threads
            )
        return config

    def recover(self, part: LinePart) -> list[LinePart]:
        """Gives the line of a part at which its backend has failed another one.

        Returns:
            Parts that it will not make: this one; or all, if it fails again and again.
        """
        line = part.line
        line.failures += 1
        left = [part] if line.failures < MOST_FAILURES else line.unmade
        for each in left:
            line.drop(each)
        if line.failures < MOST_FAILURES:
            line.start(self._config_for(line.kind), self.device)
        else:
            why = f"its backend failed {MOST_FAILURES} times, one after the other"
            self.refuse(line.kind, why)
            line.close()
        return left

    def refuse(self, kind: RowKind, why: str) -> None:
        """Lets no more pictures of a kind come to its line."""
        self._refused[kind] = why

    def __contains__(self, line: BackendLine) -> bool:
        return line in self._lines.values()

    @property
    def unmade(self) -> list[LinePart]:
        """The parts that are not made yet."""
        return [part for line in self._lines.values() for part in line.unmade]

    def forget(self) -> None:
        """Nobody waits for any part any more."""
        for kind, line in self._lines.items():
            line.forget()
            if kind in self._refused:
                line.close()

    def describe(self) -> list[str]:
        """A text for each line."""
        return [line.describe() for line in self._lines.values()]

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines = {}
