"""What is noted of a picture: where it is, and what is done to it.

A `Recipe` never changes. So whoever has one can carry it out at any time and in any process (`cook`), by the very functions that were
noted, with the numbers that the program gave them: `COOKS` has these by name. A `Cell` is memory that waits: some recipes, which are
made when a program looks. Whatever shares memory in the program shares a cell.
"""

import os
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch

JUST_WRITTEN = 2.0  # seconds: a file as young may be written again without a visible trace, so its bytes are kept
COOKS: dict[str, Callable[..., Any]] = {}  # what carries out a step, by its name
OPENERS: dict[
    str, Callable[..., Any]
] = {}  # what decodes a source, by its name: functions of a path or of bytes, and options


class Changed(OSError):
    """A file is no longer what it was when the program opened it."""


def add_cooks(**functions: Callable[..., Any]) -> None:
    """Names are used once: a recipe must not be read otherwise than it was noted."""
    if twice := COOKS.keys() & functions.keys():
        raise ValueError(f"two steps are called {', '.join(twice)}")
    COOKS.update(functions)


# Whether things wait


class _State(threading.local):
    """Of one thread.

    Attributes:
        waits: whether pictures wait here; None: as in this process.
        sends: whether recipes are pickled; who pickles otherwise, such as into a cache, gets pixels.
    """

    waits: bool | None = None
    sends: bool = False


@dataclass
class _Process:
    """Of this process.

    Attributes:
        waits: whether pictures wait in threads that nothing else is said of: in a worker.
        off: kinds ("picture", "tensor", "array") that do not wait, since a program did not get along with them.
        failed: an error in carrying out a recipe, whatever the program has done with it.
        seen: how many pictures were made where the program looked, by place, function and what it is called in.
        opened: how many pictures were opened that wait.
    """

    waits: bool = False
    failed: BaseException | None = None
    off: set[str] = field(default_factory=set)
    seen: Counter = field(default_factory=Counter)
    opened: int = 0


STATE, PROCESS = _State(), _Process()


def waits(kind: str) -> bool:
    """Whether something of this kind waits, here and now: not where PyTorch's modes change what its functions do."""
    on = PROCESS.waits if STATE.waits is None else STATE.waits
    return (
        on
        and kind not in PROCESS.off
        and not torch.is_autocast_enabled("cpu")
        and torch.get_default_dtype() == torch.float32
    )


@contextmanager
def waiting(on: bool) -> Iterator[None]:
    """In it pictures wait in this thread, or do not."""
    before, STATE.waits = STATE.waits, on
    try:
        yield
    finally:
        STATE.waits = before


def eager() -> Any:
    """In it nothing waits in this thread."""
    return waiting(False)


@contextmanager
def sending() -> Iterator[None]:
    """In it what waits is pickled as it is."""
    STATE.sends = True
    try:
        yield
    finally:
        STATE.sends = False


# Recipes


class Source(NamedTuple):
    """An encoded picture: a file, or bytes.

    Attributes:
        opener: a key of `OPENERS`.
        stamp: of a file: device, inode, size and times of its last changes.
    """

    opener: str
    options: tuple
    path: str | None
    data: bytes | None
    stamp: tuple[int, ...] | None

    @classmethod
    def of_file(cls, opener: str, path: Any, descriptor: int, *options: Any) -> "Source":
        """Of a file that is open."""
        PROCESS.opened += 1
        found = os.fstat(descriptor)
        if time.time() - found.st_mtime < JUST_WRITTEN or not stat.S_ISREG(found.st_mode):
            return cls(opener, options, None, os.pread(descriptor, found.st_size, 0), None)
        return cls(opener, options, os.path.abspath(os.fsdecode(path)), None, _stamp(found))

    @classmethod
    def of_bytes(cls, opener: str, data: bytes, *options: Any) -> "Source":
        PROCESS.opened += 1
        return cls(opener, options, None, data, None)

    def open(self) -> Any:
        self.check()
        return OPENERS[self.opener](
            self.path if self.data is None else BytesIO(self.data), *self.options
        )

    def check(self) -> None:
        if self.stamp is not None and _stamp(os.stat(self.path)) != self.stamp:
            raise Changed(f"{self.path} has changed since the program opened it")


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Recipe(NamedTuple):
    """A source and the steps on it: (name, arguments, options).

    Attributes:
        size, mode: width, height and mode of the picture in the source, as its header says.
    """

    source: Source
    size: tuple[int, int]
    mode: str
    steps: tuple = ()

    def then(self, name: str, /, *args: Any, **options: Any) -> "Recipe":
        return Recipe(
            self.source, self.size, self.mode, (*self.steps, (name, frozen(args), frozen(options)))
        )

    def cook(self) -> Any:
        """Does all of it, here and now."""
        with eager(), _plain_modes():
            try:
                made = self.source.open()
                for name, args, options in self.steps:
                    made = COOKS[name](made, *args, **options)
                return made
            except Exception as error:
                PROCESS.failed = error  # a program may catch it, where it would not have come
                raise


_FIXED = frozenset({int, float, bool, str, bytes, type(None), torch.dtype})


@contextmanager
def _plain_modes() -> Iterator[None]:
    """PyTorch's modes as they were where something waited; a training process may have others."""
    dtype = torch.get_default_dtype()
    if dtype == torch.float32 and not torch.is_autocast_enabled("cpu"):
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        with torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_default_dtype(dtype)


def frozen(value: Any) -> Any:
    """A copy of what the program may still change."""
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is tuple or kind is list:
        return tuple([frozen(each) for each in value])
    if isinstance(value, dict):
        return {key: frozen(each) for key, each in value.items()} if value else value
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, (np.ndarray, bytearray)) else value


def stands_for(kind: type, base: type = type) -> type:
    """A metaclass: `type(lazy) == kind`, also as a key of a dictionary. `type(lazy) is kind` can not be helped."""

    def equal(cls: type, other: object) -> bool:
        return other is cls or other is cls.stands_for

    made = type(base)(
        f"Standing{kind.__name__}",
        (base,),
        {"__eq__": equal, "__hash__": lambda cls: hash(cls.stands_for)},
    )
    made.stands_for = kind
    return made


# Cells


class View(NamedTuple):
    """How something looks into a cell: a step, and what it means for the recipes.

    Attributes:
        step: on all of the cell.
        rows: which of the recipes are left.
        each: the step on one of them; None: none.
    """

    step: tuple
    rows: slice = slice(None)
    each: tuple | None = None


class Cell:
    """Memory that waits.

    Attributes:
        rows: recipes, or tensors that were made already.
        lead: the dimensions that number them; none: there is one row.
        made: its value, once somebody has looked.
        viewed: whether something else looks into this memory, so that it must not change unnoticed.
    """

    __slots__ = ("__dict__", "lead", "rows", "viewed")

    def __init__(self, rows: list[Any], lead: tuple[int, ...] = ()):
        self.rows, self.lead, self.viewed = rows, lead, False

    @property
    def made(self) -> Any:
        return self.__dict__.get("made")

    def make(self) -> Any:
        if self.made is None:
            made = [row.cook() if isinstance(row, Recipe) else row for row in self.rows]
            if self.lead:
                plain = torch.stack([row.as_subclass(torch.Tensor) for row in made])
                self.fill(plain.reshape(*self.lead, *plain.shape[1:]))
            else:
                self.fill(made[0])
        return self.made

    def fill(self, value: Any) -> None:
        self.__dict__.setdefault(
            "made", value
        )  # of two threads that look at once, both get what the first has made


def check(made: Any, shape: Any, kind: Any) -> None:
    """Whether what was made looks as it was said to: else this module knows a library less well than it thinks."""
    found = (made.size, made.mode) if hasattr(made, "getbands") else (made.shape, made.dtype)
    if tuple(found[0]) != tuple(shape) or found[1] != kind:
        PROCESS.failed = RuntimeError(f"lazy: {found} was made where {shape, kind} was announced")
        raise PROCESS.failed


class Waiting:
    """What a lazy tensor and a lazy array have in common: they look into a cell."""

    cell: Cell
    path: tuple[View, ...] = ()
    _value: Any = None

    @property
    def waits(self) -> bool:
        return self.cell.made is None

    @property
    def rows(self) -> list[Any]:
        rows = self.cell.rows
        for view in self.path:
            rows = [
                row.then(view.each[0], *view.each[1:]) if view.each else row
                for row in rows[view.rows]
            ]
        return rows

    def value(self) -> Any:
        """The true one. It shares memory as it would have."""
        if self._value is None:
            if self.waits:
                blame()
            value = self.cell.make()
            for view in self.path:
                name, *args = view.step
                value = COOKS[name](value, *args)
            check(value, self.shape, self.dtype)
            self._value = value
        return self._value


# Who looked

_OURS = os.path.dirname(os.path.abspath(__file__))
_LIBRARIES = ("/site-packages/", "/lib/python3", "<frozen", "<string", _OURS)


def blame() -> None:
    """Notes which line of the program looked at pixels, by which function."""
    frame, inner = sys._getframe(1), None
    while frame and any(part in frame.f_code.co_filename for part in _LIBRARIES):
        if (
            inner is None
            and _OURS not in frame.f_code.co_filename
            and "_pytree" not in frame.f_code.co_filename
        ):
            inner = frame
        frame = frame.f_back
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "?"
    where = frame.f_code.co_qualname if frame else "?"
    PROCESS.seen[place, where, inner.f_code.co_qualname if inner else where] += 1
