"""A range of bytes of a file or an object, as a file object of its own."""

import io
import os
from collections.abc import Callable

_READ_AT_ONCE = 8192  # bytes; enough for the headers of most images


def open_part(number: int, offset: int, length: int) -> io.BufferedReader:
    """A part of an open file.

    Args:
        number: the file descriptor.
    """
    part = RangeFile(lambda view, at: os.preadv(number, [view], offset + at), length)
    return io.BufferedReader(part, _READ_AT_ONCE)


class RangeFile(io.RawIOBase):
    """A read-only file of one range of bytes; what is outside the range cannot be read.

    Args:
        read: fills a buffer from a position in the range on; returns how many bytes it wrote.
        length: length of the range in bytes.
    """

    def __init__(self, read: Callable[[memoryview, int], int], length: int):
        self._read, self._length, self._at = read, length, 0

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer)[: max(0, self._length - self._at)]
        count = self._read(view, self._at) if len(view) else 0
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        if at < 0:
            raise ValueError(f"negative seek position {at}")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
