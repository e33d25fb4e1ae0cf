"""Where the encoded bytes of an image are, and how they are read.

An `Extent` is a whole file, or a part of one such as a member of a tar. `Reader.read` returns its
bytes, from the file, the object store, or the local copy of a remote shard (shards/copies.py).
"""

import errno
import os
import resource
import time
from collections.abc import Callable
from functools import lru_cache, partial
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.shards import traffic
from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.data.shards.copies import is_copied, is_gone, is_whole, open_copy
from dali_pipes.data.shards.listing import CHANGED
from dali_pipes.data.shards.remote import read_object
from dali_pipes.system.traces import span

T = TypeVar("T")

PAUSE_S = 0.1  # before a failed read is tried again
PROCESS_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of errors that are no file's fault
# errors that a second try does not change; None: the file is not the one that was scanned
_FOR_GOOD = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)


class Extent(NamedTuple):
    """The place of one image's encoded bytes.

    Attributes:
        file: path of the file, or its URL.
        member: name of the image inside the file; "" if it is the whole file, and then nothing
            below is used.
        offset, length: where its bytes begin in the file, and their number.
        stamp: size in bytes and modification time in nanoseconds of the file when it was scanned.
        data: the encoded bytes themselves, for an image in memory; `file` then only names it.
    """

    file: str
    member: str = ""
    offset: int = 0
    length: int = 0
    stamp: tuple[int, int] = (0, 0)
    data: bytes | None = None

    def __str__(self) -> str:
        return f"{self.file}/{self.member}" if self.member else self.file


class ShardMember(NamedTuple):
    """An image inside a file, as the reader of that file's index lists it.

    Attributes:
        member: its name inside the file; empty if the problem is in the file itself.
        offset, length: where it is, in bytes.
        label: its class number.
        problem: why it cannot be used; None if it can, as far as is known without looking at the
            image.
        targets: what was asked for besides, as the file has it, by the field of `objects.Targets`;
            for a mask, its offset and length in bytes.
    """

    member: bytes = b""
    offset: int = 0
    length: int = 0
    label: int = -1
    problem: str | None = None
    targets: dict[str, Any] | None = None


def try_twice(read: Callable[[], T]) -> T:
    """Calls `read`; if it fails, once more after a moment, since a file server may have been away.

    Raises:
        OSError: it fails for good, or a second time.
    """
    try:
        return read()
    except OSError as error:
        if error.errno in _FOR_GOOD:
            raise

    traffic.add(retries=1)
    time.sleep(PAUSE_S)
    return read()


class Reader:
    """Reads extents without holding the GIL, from any number of threads.

    Files that hold many images are kept open.

    Args:
        keep: how many files stay open at most; the least recently used ones are closed. By default
            a quarter of what the process may open.
    """

    def __init__(self, keep: int | None = None):
        # the shared counts are made here, before the loader starts the workers that add to them
        self._keep, self._traffic = keep, traffic.totals()
        # a file that this cache drops is closed when no thread reads it any more
        self._opened = lru_cache(keep or _may_keep())(OpenFile)

    def read(self, extent: Extent) -> NDArray[np.uint8]:
        """Reads the encoded bytes into a new uint8 array.

        A failed read of a local file is tried once more after a moment, since a file server may
        have been away.

        Raises:
            OSError: they cannot be read, or the file that holds the part is not the one that was
                scanned.
        """
        with span("read"):
            return self._read_anywhere(extent)

    def _read_anywhere(self, extent: Extent) -> NDArray[np.uint8]:
        if extent.data is not None:
            return np.frombuffer(bytearray(extent.data), np.uint8)
        if not extent.member and is_remote(extent.file):
            # a bytearray, since an array of bytes would be read-only
            return np.frombuffer(bytearray(read_object(extent.file)), np.uint8)

        # requests for a copy are sent several times already (store_requests.py)
        if is_copied(extent.file):
            return self._read_local(extent)
        return try_twice(partial(self._read_local, extent))

    def _read_local(self, extent: Extent) -> NDArray[np.uint8]:
        if not extent.member:
            file = OpenFile(extent.file)
            return _read(file.number, 0, file.size)

        while True:
            file = self._opened(extent.file, extent.stamp)
            encoded = _read(file.number, extent.offset, extent.length)
            if len(encoded) == extent.length:
                return encoded

            damaged = is_copied(extent.file) and not is_whole(file.number, extent.stamp)
            if not is_gone(file.number) and not damaged:
                raise OSError(f"ends after {len(encoded):,} of {extent.length:,} bytes")
            # The copy was removed to make room, or damaged by something else. It is opened anew,
            # and so are the other files, since lru_cache cannot forget one alone.
            self._opened.cache_clear()

    def close(self) -> None:
        """Closes the open files; reading opens them again."""
        self._opened.cache_clear()

    def __reduce__(self) -> tuple[Any, ...]:
        # the shared array can be pickled only for a worker that is being started
        shared = self._traffic if get_spawning_popen() else None
        return _unpickled, (self._keep, shared)  # each process opens its own files


class OpenFile:
    """A file that stays open while it is used, so that no other thread closes it during a read."""

    def __init__(self, file: str, stamp: tuple[int, int] | None = None):
        copied = stamp and is_copied(file)
        self.number = (
            open_copy(file, stamp)
            if stamp and copied
            else os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        )
        stat = os.fstat(self.number)
        self.size = stat.st_size
        if stamp and not copied and stamp != (stat.st_size, stat.st_mtime_ns):
            raise OSError(CHANGED)

    def __del__(self) -> None:
        # opening may have failed
        if hasattr(self, "number"):
            os.close(self.number)


def _unpickled(keep: int | None, shared: Any) -> Reader:
    if shared:
        traffic.share(shared)
    return Reader(keep)


def _may_keep() -> int:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1024 if allowed == resource.RLIM_INFINITY else max(16, min(1024, allowed // 4))


def _read(number: int, offset: int, length: int) -> NDArray[np.uint8]:
    """Reads `length` bytes of an open file at `offset`, or fewer if it ends before."""
    encoded, done = np.empty(length, np.uint8), 0
    # one call may read less than it is asked for, on Linux 2 GiB at most
    while done < length and (count := os.preadv(number, [encoded[done:].data], offset + done)):
        done += count
    return encoded[:done]
