"""Backends at work: a `BackendLine` for each kind of rows, and which kinds get one.

A backend takes some planned batches before it gives the first one back. While somebody waits for a
batch, its line reads further works, as far as that is allowed. After that the backend gets planned
batches of one small picture, which push the others through. So no stream has to end with an epoch,
and a kind that comes seldom holds nothing up.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
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
from dali_pipes.backends.backend import Backend, Decoded, Job
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig, DaliOptions
from dali_pipes.backends.registry import load_backend
from dali_pipes.errors import ConfigError
from dali_pipes.plan.plan import PlannedBatch
from dali_pipes.system.modes import in_own_modes

FEW = 4  # pictures of a kind that come before it gets a backend
MOST_LINES = 8  # backends at the same time
IDLE = 32  # works without a picture of its kind, after which a line may make place for another
MOST_FAILURES = 3  # of a line's backends, one after the other, each before its first batch
_MOST_COUNTED = 4096  # kinds

ReadMore = Callable[[], bool]


@dataclass(eq=False, slots=True)
class Item:
    """One picture of a work: `cell.rows[place]` is its recipe.

    Attributes:
        done: how many of the recipe's notes a backend does; the rest is done as noted.
        front: how many of the first notes a backend may do, if it does not do all.
        why: why it does not do all; "": it does.
        future: what is done as noted.
    """

    cell: Cell
    place: int
    recipe: Recipe
    done: int = 0
    front: int = 0
    why: str = ""
    future: "Future[Any] | None" = None


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
        last_used: the number of the last work that had a picture for it.
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
        self.last_used = self.failures = self.count = 0

    @in_own_modes
    def start(self, config: LoaderConfig, device: torch.device) -> None:
        """Starts a backend.

        Raises:
            ConfigError: one of these options cannot make what this line is for.
        """
        transform = transform_of(self.kind, self.room)
        job = Job(transform, self._filler.images, self.batch_size, device)
        self._backend, self._stream = load_backend(config)(job, config), None

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

    def start_again(
        self, parts: list[LinePart], config: LoaderConfig, device: torch.device
    ) -> None:
        """Starts another backend, which makes these parts first."""
        self.close()
        self._inside, self._waiting = {}, deque(parts)
        self.start(config, device)

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
        # which get no more pictures, but still have some
        self._ending: list[BackendLine] = []
        self._met: Counter[RowKind] = Counter()
        self._refused: dict[RowKind, str] = {}

    def send(self, kind: RowKind, pairs: Pairs, work: int) -> tuple[list[LinePart], list[Item]]:
        """Plans those of these pictures for which a line has room.

        Args:
            work: the number of their work.

        Returns:
            Their parts, and the other pictures, with the reason.
        """
        line, why = self._find(kind, [row for _, row in pairs], work)
        if line is None:
            taken: Pairs = []
        elif not why:
            taken = pairs
        else:
            taken = [(item, row) for item, row in pairs if line.room.has(row)]

        mine = {id(item) for item, _ in taken}
        others = [item for item, _ in pairs if id(item) not in mine]
        for item in others:
            item.why = item.why or why
        if line is None or not taken:
            return [], others
        line.last_used = work
        return line.send(taken), others

    def _find(
        self, kind: RowKind, rows: Sequence[Row], work: int
    ) -> tuple[BackendLine | None, str]:
        """The line of these rows, and why it has no room for some of them; None: there is none."""
        if kind in self._refused:
            return None, self._refused[kind]
        line = self._lines.get(kind)
        if line and all(map(line.room.has, rows)):
            return line, ""

        if line is None:
            if len(self._met) >= _MOST_COUNTED:
                self._met.clear()
            self._met[kind] += len(rows)
            if self._met[kind] < FEW:
                return None, "too few pictures are like it"
            if not self._make_place(work):
                return None, f"there are more than {MOST_LINES} kinds of pictures"

        room = line.room if line else Room()
        grown = room.grown_for(rows)
        too_many = "" if all(map(grown.has, rows)) else "it has too many operations"
        if line and grown.size == room.size:
            return line, too_many
        if line:
            self._retire(line)
        opened, refusal = self._open(kind, grown, max(len(rows), self.batch_size))
        return opened, refusal or too_many

    def _make_place(self, work: int) -> bool:
        """Retires the line that was not used for longest, if there are as many as may be."""
        if len(self._lines) < MOST_LINES:
            return True
        oldest = min(self._lines.values(), key=lambda line: line.last_used)
        if work - oldest.last_used < IDLE:
            return False
        self._retire(oldest)
        return True

    def _retire(self, line: BackendLine) -> None:
        del self._lines[line.kind]
        self._ending.append(line)
        self.close_ended()

    def close_ended(self) -> None:
        """Closes lines that get no more pictures and have none."""
        for line in [line for line in self._ending if not line.unmade]:
            self._ending.remove(line)
            line.close()

    def _open(self, kind: RowKind, room: Room, batch_size: int) -> tuple[BackendLine | None, str]:
        """A new line; None: no backend makes such pictures, for this reason."""
        line = BackendLine(kind, room, batch_size, self._read_more)
        try:
            line.start(self._config_for(kind), self.device)
        except ConfigError as error:
            line.close()
            # options that no kind gets along with are the user's to change
            if not self._lines and not self._refused and not kind.has_steps:
                raise
            self._refused[kind] = str(error)
            return None, self._refused[kind]
        self._lines[kind] = line
        return line, ""

    def _config_for(self, kind: RowKind) -> LoaderConfig:
        config = self.config
        if kind.has_steps and isinstance(config, DaliOptions) and config.graph_finishes:
            # DALI's graph has no operators for Pillow's warps and resizes of whole images
            return DaliConfig(
                device="cpu", num_threads=config.num_threads, read_threads=config.read_threads
            )
        return config

    def refuse(self, kind: RowKind, why: str) -> None:
        """Gives a kind no line any more."""
        self._refused[kind] = why
        if line := self._lines.get(kind):
            self._retire(line)

    def recover(self, part: LinePart) -> list[LinePart]:
        """Gives the line of a part at which its backend has failed another one.

        Returns:
            Parts that it will not make: this one; or all, if it fails again and again.
        """
        line = part.line
        line.failures += 1
        others = [each for each in line.unmade if each is not part]
        if line.failures < MOST_FAILURES:
            line.start_again(others, self._config_for(line.kind), self.device)
            return [part]

        line.forget()
        if self._lines.get(line.kind) is line:
            self.refuse(line.kind, f"its backend failed {MOST_FAILURES} times, one after the other")
        self.close_ended()
        return [part, *others]

    def forget(self) -> None:
        """Nobody waits for any part any more."""
        for line in [*self._lines.values(), *self._ending]:
            line.forget()
        self.close_ended()

    def describe(self) -> list[str]:
        """A text for each line."""
        return [line.describe() for line in self._lines.values()]

    def close(self) -> None:
        for line in [*self._lines.values(), *self._ending]:
            line.close()
        self._lines, self._ending = {}, []
