"""What is noted of a picture: where it is, and what is done to it.

A `Recipe` never changes. So whoever has one can make the picture at any time and in any process, by
the very functions that were noted, with the numbers that the program gave them.
"""

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch

from dali_pipes.adapters.lazy.state import PROCESS, eager
from dali_pipes.adapters.lazy.steps.step import STEPS

# seconds: a file as young may be written again without a visible trace, so its bytes are kept
JUST_WRITTEN = 2.0
# what decodes a source, by its name: functions of a path or of a file in memory, and options
OPENERS: dict[str, Callable[..., Any]] = {}

Note = tuple[str, tuple[Any, ...], dict[str, Any]]  # name of a step, arguments, options


# the coding of a JPEG of red, green and blue, which nvJPEG takes for YCbCr
STORES_RGB = "RGB"


class Changed(OSError):
    """A file is no longer what it was when the program opened it."""


class Source(NamedTuple):
    """An encoded picture: a file, or bytes.

    Attributes:
        opener: a key of `OPENERS`.
        options: what it gets, beside the path or bytes.
        path: of a file, absolute.
        data: of bytes.
        stamp: of a file: device, inode, size and times of its last changes.
        is_whole: whether it ends as a JPEG or a PNG does. What decodes a part of a truncated one
            may not notice, where the program's decoder raises.
        coding: of a JPEG how it is coded, as of `LooseImages.jpegs`; STORES_RGB; "": not known.
    """

    opener: str
    options: tuple[Any, ...]
    path: str | None
    data: bytes | None
    stamp: tuple[int, ...] | None
    is_whole: bool = True
    coding: str = ""

    @classmethod
    def of_file(
        cls, opener: str, path: Any, descriptor: int, *options: Any, coding: str = ""
    ) -> "Source":
        """Of a file that is open.

        Args:
            path: what it was opened by; of anything but a path its bytes are kept.
        """
        found = os.fstat(descriptor)
        is_path = type(path) is str or isinstance(path, (bytes, os.PathLike))
        is_file = is_path and stat.S_ISREG(found.st_mode)
        # one without a name has been removed since it was opened, or another one put in its place
        if not is_file or not found.st_nlink or _is_young(found.st_mtime):
            data = os.pread(descriptor, found.st_size, 0)
            return cls.of_bytes(opener, data, *options, coding=coding)
        is_whole = _is_end(os.pread(descriptor, _TAIL, max(found.st_size - _TAIL, 0)))
        name = path if type(path) is str else os.fsdecode(path)
        absolute = name if name.startswith("/") else os.path.abspath(name)
        made = cls(opener, options, absolute, None, _stamp(found), is_whole, coding)
        return made._opened()

    @classmethod
    def of_bytes(cls, opener: str, data: bytes, *options: Any, coding: str = "") -> "Source":
        made = cls(opener, options, None, data, None, _is_end(data[-_TAIL:]), coding)
        return made._opened()

    def _opened(self) -> "Source":
        PROCESS.opened += 1
        PROCESS.undecoded[id(self)] = self
        return self

    @property
    def size(self) -> int:
        """In bytes."""
        return self.stamp[2] if self.data is None else len(self.data)  # type: ignore[index]

    def open(self) -> Any:
        """What the opener makes of it.

        Raises:
            Changed: the file is another one by now.
            OSError: it is gone, or cannot be decoded.
        """
        PROCESS.undecoded.pop(id(self), None)
        self.check()
        return OPENERS[self.opener](
            self.path if self.data is None else BytesIO(self.data), *self.options
        )

    def check(self) -> None:
        if self.stamp is not None and _stamp(os.stat(self.path)) != self.stamp:  # type: ignore[arg-type]
            raise Changed(f"{self.path} has changed since the program opened it")


def decode_dropped() -> None:
    """Decodes what the program has opened and dropped without a look at its pixels, since its own
    decoder would have told it of a broken file. An error is in `PROCESS.failed` then.
    """
    for source, references in _references(PROCESS.undecoded):
        if references == _ALONE:
            with eager():
                try:
                    source.open()
                except Exception as error:
                    PROCESS.failed = error


def _references(values: dict[int, Any]) -> list[tuple[Any, int]]:
    return [(each, sys.getrefcount(each)) for each in list(values.values())]


_ALONE = _references({0: object()})[0][1]  # of what nobody else has
_TAIL = 12  # bytes: the last chunk of a PNG


def _is_end(data: bytes) -> bool:
    """Whether these are the last bytes of a JPEG or of a PNG."""
    return data[-2:] == b"\xff\xd9" or data[4:8] == b"IEND"


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_young(written: float) -> bool:
    """Whether a file was written just now. Asking the time takes as long as all the rest."""
    if written > _NOW[0] - JUST_WRITTEN:
        _NOW[0] = time.time()
    return written > _NOW[0] - JUST_WRITTEN


_NOW = [time.time()]  # or some time before


class Recipe(NamedTuple):
    """A source and what is done to it, in order.

    Attributes:
        size, mode: width, height and mode of the picture in the source, as its header says.
    """

    source: Source
    size: tuple[int, int]
    mode: str
    notes: tuple[Note, ...] = ()

    def then(self, name: str, /, *args: Any, **options: Any) -> "Recipe":
        return self.noting((name, frozen(args), frozen(options)))

    def noting(self, note: Note) -> "Recipe":
        """The same with a note whose arguments are frozen."""
        source, size, mode, notes = self
        # without the function that NamedTuple makes: half of the time
        return tuple.__new__(Recipe, (source, size, mode, (*notes, note)))

    def make(self) -> Any:
        """Does all of it, here and now. An error is kept in `PROCESS.failed`, too."""
        with eager(), _plain_modes():
            try:
                made = self.source.open()
                for name, args, options in self.notes:
                    made = STEPS[name].make(made, *args, **options)
                return made
            except Exception as error:
                PROCESS.failed = error  # a program may catch it, where it would not have come
                raise


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


NO_OPTIONS: dict[str, Any] = {}
_FIXED = frozenset({int, float, bool, str, bytes, type(None), torch.dtype})


def frozen(value: Any) -> Any:
    """A copy of what the program may still change: lists, arrays, tensors, also in containers."""
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is tuple or kind is list:
        for each in value:
            if type(each) not in _FIXED:
                return tuple([frozen(each) for each in value])
        return tuple(value)  # a tuple is not copied
    if isinstance(value, int):
        return int(value)  # of an IntEnum, which would be pickled by its name
    if kind is dict and not value:
        return NO_OPTIONS
    if isinstance(value, dict):
        return {key: frozen(each) for key, each in value.items()}
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, (np.ndarray, bytearray)) else value
