"""Finds the bytes of a picture in a file that holds many: `Containers`.

Programs read pictures as bytes out of an LMDB, HDF5, a tar, a zip without compression, an Arrow
file of Hugging Face, or any file of their own. Such bytes lie in the file as they are, so that
dali_pipes can read them from there. The files that are looked into are those that the program has
read, has open, or has mapped into its memory.
"""

import mmap
import os
import stat
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.reader import Extent, Reader
from dali_pipes.system.progress import track

Place = str | Extent  # of a picture: the path of its file, or a part of a file

_MOST_MAPPED = 16  # files that are mapped at once, since each takes a descriptor
_MOST_FILES = 4096  # that are remembered
_MOST_SIZES = 2**16  # of files, that are remembered
_NEAR = 65_536  # bytes between two pictures of a file that is read in order
_FEWEST = 24  # bytes of a picture; fewer occur anywhere
_HEAD = 64  # bytes that are looked for near the last picture
# the first bytes of formats, by which all pictures in a file are found
_FIRST_BYTES = (b"\xff\xd8\xff", b"\x89PNG", b"RIFF", b"II*\0", b"MM\0*")
# where in a picture eight bytes are taken to recognize it; JPEGs of one camera begin alike
_DEPTHS = (16, 128, 512, 2048, 8192, 32_768)
_MIX = np.uint64(0x9E3779B97F4A7C15)  # any odd number with many bits
_CHUNK, _LARGE = 2**26, 2**30  # bytes between two steps of the progress bar; of a file with one


class Containers:
    """The files in which pictures were found, for all visits of one data set."""

    def __init__(self) -> None:
        # those that were looked into, and the names of those that had a picture; the latest last
        self._containers: OrderedDict[str, _Container] = OrderedDict()
        self._useful: dict[str, None] = {}
        self._sizes: dict[str, int] = {}
        self._mapped: OrderedDict[str, mmap.mmap] = OrderedDict()

    def find(self, data: bytes, read: Sequence[str]) -> Extent | None:
        """The part of a file that holds exactly these bytes; None: no file does, as far as is
        known.

        Args:
            read: files that the program has read for this sample.
        """
        if len(data) < _FEWEST:
            return None
        for file in self._candidates(len(data), read):
            with suppress(OSError, ValueError):  # it cannot be read, or not be mapped
                container, mapped = self._container(file), self._map(file)
                if (offset := container.find(data, mapped)) is not None:
                    self._useful.pop(file, None)
                    self._useful[file] = None
                    return container.extent(offset, len(data))
        return None

    def has_size(self, file: str, size: int) -> bool:
        """Whether a file has, or had when it was looked at, so many bytes.

        Raises:
            OSError: there is no such file.
        """
        # the label pass asks twice for each sample, and the system takes 2 to 7 µs
        if self._sizes.get(file) == size:
            return True
        known = os.stat(file).st_size
        if len(self._sizes) < _MOST_SIZES:
            self._sizes[file] = known
        return known == size

    def close(self) -> None:
        """Closes the files; `find` opens them again."""
        while self._mapped:
            self._mapped.popitem()[1].close()

    def _candidates(self, size: int, read: Sequence[str]) -> Iterator[str]:
        """Files that may hold `size` bytes, the likely ones first."""
        seen: set[str] = set()

        def fresh(files: Sequence[str]) -> Iterator[str]:
            for file in map(os.path.abspath, files):
                if file not in seen and _may_hold(file, size):
                    yield file
                seen.add(file)

        yield from fresh(read[::-1])
        yield from fresh(list(self._useful)[::-1])
        # this list costs more than all of the above, and is needed once for a file
        yield from fresh(_files_in_use())

    def _container(self, file: str) -> "_Container":
        if file not in self._containers:
            self._containers[file] = _Container(file)
        self._containers.move_to_end(file)
        if len(self._containers) > _MOST_FILES:
            oldest, _ = self._containers.popitem(last=False)
            self._useful.pop(oldest, None)
        return self._containers[file]

    def _map(self, file: str) -> mmap.mmap:
        if file in self._mapped:
            self._mapped.move_to_end(file)
            return self._mapped[file]
        with open(file, "rb") as opened:
            self._mapped[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self._mapped) > _MOST_MAPPED:
            self._mapped.popitem(last=False)[1].close()
        return self._mapped[file]


class _Container:
    """One file that may hold pictures."""

    def __init__(self, file: str):
        status = os.stat(file)
        self._file, self._stamp = file, (status.st_size, status.st_mtime_ns)
        # where the picture begins and ends that was found last
        self._last = (0, 0)
        self._indexes: dict[bytes, _Index] = {}

    def extent(self, offset: int, length: int) -> Extent:
        # the name of the member serves messages, and says that it is a part of a file
        return Extent(self._file, f"byte {offset}", offset, length, self._stamp)

    def find(self, data: bytes, mapped: mmap.mmap) -> int | None:
        """Where these bytes begin in the file; None: nowhere."""
        offset = self._find_near(data, mapped)
        if offset is None:
            first = next((each for each in _FIRST_BYTES if data.startswith(each)), data[:2])
            if first not in self._indexes:
                self._indexes[first] = _Index(self._file, mapped, first)
            offset = self._indexes[first].find(data, mapped)
        if offset is not None:
            self._last = offset, offset + len(data)
        return offset

    def _find_near(self, data: bytes, mapped: mmap.mmap) -> int | None:
        """Looks behind the picture that was found last, then before it."""
        head, (start, end) = data[:_HEAD], self._last
        at = mapped.find(head, end, end + _NEAR + len(head))
        while at >= 0:
            if mapped[at : at + len(data)] == data:
                return at
            at = mapped.find(head, at + 1, end + _NEAR + len(head))

        # samples are taken in the opposite order the second time
        at = mapped.rfind(head, max(0, start - _NEAR - len(data)), start)
        return at if at >= 0 and mapped[at : at + len(data)] == data else None


class _Index:
    """Where a file has the first bytes of a format, and how the bytes go on there.

    The whole file is read once for it.
    """

    def __init__(self, file: str, mapped: mmap.mmap, first: bytes):
        self._starts = np.fromiter(_places(file, mapped, first), np.int64)
        # by depth: the keys in ascending order, and the number of the place of each
        self._sorted: dict[int, tuple[NDArray[np.uint64], NDArray[np.int64]]] = {}

    def find(self, data: bytes, mapped: mmap.mmap) -> int | None:
        depths = [each for each in _DEPTHS if each + 8 <= len(data)]
        if not depths or not len(self._starts):
            return None
        if depths[-1] not in self._sorted:
            keys = _keys(mapped, self._starts, depths)
            order = np.argsort(keys, kind="stable")
            self._sorted[depths[-1]] = keys[order], order

        # equal keys say little, so all bytes are compared
        keys, order = self._sorted[depths[-1]]
        wanted = _keys(data, np.zeros(1, np.int64), depths)
        start, end = (int(np.searchsorted(keys, wanted, side)[0]) for side in ("left", "right"))
        for at in self._starts[order[start:end]].tolist():
            if mapped[at : at + len(data)] == data:
                return int(at)
        return None


def _places(file: str, mapped: mmap.mmap, first: bytes) -> Iterator[int]:
    """Yields where these bytes are in a file."""
    size = len(mapped)
    chunks = range(0, size, _CHUNK)
    what = f"looking for pictures in {Path(file).name}"
    for start in track(chunks, what, len(chunks), size > _LARGE):
        # a place begins in one chunk only, and may end in the next
        end = min(start + _CHUNK, size) + len(first) - 1
        at = mapped.find(first, start, end)
        while at >= 0:
            yield at
            at = mapped.find(first, at + 1, end)


def _keys(source: Any, starts: NDArray[np.int64], depths: list[int]) -> NDArray[np.uint64]:
    """A number for the picture at each of these places, made of its bytes at these depths."""
    # all runs of eight bytes as numbers; those beyond the end of the file are of no picture
    words = np.ndarray((len(source) - 7,), "<u8", source, strides=(1,))
    keys = np.zeros(len(starts), np.uint64)
    for depth in depths:
        keys = keys * _MIX + words[np.minimum(starts + depth, len(words) - 1)]
    return keys


def _may_hold(file: str, size: int) -> bool:
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size >= size


def _files_in_use() -> list[str]:
    """The files that this process has open or mapped, without its programs and libraries."""
    files: list[str] = []
    with suppress(OSError):
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                files.append(str(Path(f"/proc/self/fd/{number}").readlink()))

    # lines of "address permissions offset device inode path", the path possibly with blanks
    code: set[str] = set()
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
            fields = line.split(maxsplit=5)
            files += fields[5:]
            if "x" in fields[1]:
                code.update(fields[5:])
    return [file for file in dict.fromkeys(files) if file.startswith("/") and file not in code]


def hold_the_same(ones: Sequence[Place | None], others: Sequence[Place | None]) -> bool:
    """Whether pictures are at the same places, or at others with the same bytes: a file may hold a
    picture twice.
    """
    return len(ones) == len(others) and all(
        one == other or _are_equal(one, other) for one, other in zip(ones, others, strict=True)
    )


def _are_equal(one: Place | None, other: Place | None) -> bool:
    if not (isinstance(one, Extent) and isinstance(other, Extent) and one.length == other.length):
        return False
    reader = Reader(keep=2)
    with suppress(OSError):  # it has changed meanwhile
        return bool(np.array_equal(reader.read(one), reader.read(other)))
    return False
