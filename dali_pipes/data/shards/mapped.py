"""Images in Arrow files that this process has mapped: where their bytes are in the file.

An Arrow file that is not compressed holds each value as it is, and a table that is mapped from it
is nothing but addresses in the file's pages. So the place of an image in the file follows from the
address of its bytes, whatever was done to the table in between: slices, selections, columns that
were added or renamed. The kernel says which file is mapped where.
"""

import os
from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_COMPARED = 4096  # bytes of an image that are compared with the file


class NotMappedError(Exception):
    """Bytes that are in no file, or not in the file that has its name now."""


class Places(NamedTuple):
    """Where the values of an array of bytes are.

    Attributes:
        file: the file that holds them; "" if there are no bytes.
        offsets, lengths: (n,) int64; 0 for null.
    """

    file: str
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]


class _Mapping(NamedTuple):
    """A line of /proc/self/maps (proc_pid_maps(5)): a part of a file in memory."""

    start: int
    end: int
    offset: int
    file: str


class Mappings:
    """The files that this process has mapped at one time."""

    def __init__(self) -> None:
        with open("/proc/self/maps", "rb") as lines:
            fields = [line.rstrip(b"\n").split(maxsplit=5) for line in lines]
        self._mappings = [_read_mapping(each) for each in fields if len(each) == 6]
        self._starts = [each.start for each in self._mappings]

    def find(self, values: pa.Array) -> Places:
        """Finds the bytes of one chunk: an array of (large) binary.

        Raises:
            NotMappedError: they are in memory only, or the file was replaced.
        """
        _, offset_buffer, data = values.buffers()
        kind = np.int64 if pa.types.is_large_binary(values.type) else np.int32
        # a chunk without any bytes may have no buffers
        if offset_buffer is None or data is None or not data.size:
            nothing = np.zeros(len(values), np.int64)
            return Places("", nothing, nothing)

        stored = np.frombuffer(offset_buffer, kind)[values.offset :][: len(values) + 1]
        bounds: NDArray[np.int64] = stored.astype(np.int64)
        lengths = np.diff(bounds)
        if not lengths.any():
            return Places("", np.zeros_like(lengths), lengths)

        mapping = self._mapping_of(data.address + int(bounds[0]), data.address + int(bounds[-1]))
        offsets = bounds[:-1] + (data.address - mapping.start + mapping.offset)
        _compare(mapping.file, data, bounds, offsets)
        return Places(mapping.file, offsets, lengths)

    def _mapping_of(self, start: int, end: int) -> _Mapping:
        at = bisect_right(self._starts, start) - 1
        mapping = self._mappings[at] if at >= 0 else None
        if mapping is None or end > mapping.end or not mapping.file.startswith("/"):
            raise NotMappedError("they are in memory, and in no file")
        return mapping


def _read_mapping(fields: list[bytes]) -> _Mapping:
    addresses, _, offset, _, _, name = fields
    start, end = (int(each, 16) for each in addresses.split(b"-"))
    # the kernel writes a line end in a name as an octal number
    return _Mapping(start, end, int(offset, 16), os.fsdecode(name.replace(b"\\012", b"\n")))


def _compare(
    file: str, data: pa.Buffer, bounds: NDArray[np.int64], offsets: NDArray[np.int64]
) -> None:
    """Compares the first and the last image with the file, which may have been replaced since it
    was mapped.
    """
    rows = np.flatnonzero(np.diff(bounds))[[0, -1]].tolist()
    try:
        with open(file, "rb", buffering=0) as opened:
            for row in rows:
                length = min(_COMPARED, int(bounds[row + 1] - bounds[row]))
                mapped = data.slice(int(bounds[row]), length)
                if os.pread(opened.fileno(), length, int(offsets[row])) != mapped.to_pybytes():
                    raise NotMappedError(f"{file} was changed since it was opened")
    except OSError as error:
        # the name of a file that was deleted ends with " (deleted)"
        raise NotMappedError(f"{file}: {error.strerror}") from None
