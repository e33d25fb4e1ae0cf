"""Images inside Parquet files, in the form of Hugging Face's `datasets`: a column of structs of
`bytes` and `path`.

Pages are compressed, so no image can be read by itself. A row group therefore takes the part of a
shard, and is named FILE#NUMBER. When the first of its images is read, all are copied, one after the
other, into a file of the local cache (copies.py).

Arrow files that are not compressed are another matter: they hold each value as it is, and a table
that is mapped from one is nothing but addresses in the file's pages. So the place of an image in
the file follows from the address of its bytes, whatever was done to the table in between: slices,
selections, columns that were added or renamed. The kernel says which file is mapped where.
"""

import os
from bisect import bisect_right
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import plain
from dali_pipes.data.features import features_of, find_image_column

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


_MARK = ".parquet#"


def is_group(file: str) -> bool:
    _, mark, number = file.rpartition(_MARK)
    return bool(mark) and number.isdecimal()


def has_groups(files: pa.ChunkedArray) -> bool:
    """Whether one of these names, which are binary, is that of a row group."""
    some = files.filter(pc.match_substring(files, _MARK))
    return any(is_group(os.fsdecode(file)) for file in pc.unique(some).to_pylist())


def group_name(file: bytes, number: int) -> bytes:
    return b"%b#%d" % (file, number)


def group_of(name: str) -> tuple[str, int]:
    """The file of a row group, and its number."""
    file, _, number = name.rpartition("#")
    return file, int(number)


def read_group(file: Any, number: int) -> pa.StructArray:
    """Reads the images of a row group: structs of `bytes` and maybe `path`.

    Args:
        file: a path or an open file.

    Raises:
        OSError: it cannot be read.
    """
    try:
        with pq.ParquetFile(file, pre_buffer=False) as opened:
            schema = opened.schema_arrow
            name = find_image_column("a Parquet file", schema, features_of(schema))
            table = plain(opened.read_row_group(number, columns=[name], use_threads=False))
            images = table[name].combine_chunks()
    except (pa.ArrowException, KeyError, IndexError) as error:
        raise OSError(f"row group {number} cannot be read ({error})") from None

    if not pa.types.is_struct(images.type):
        images = pa.StructArray.from_arrays([images], ["bytes"])
    large = [
        (column.name, pa.large_binary() if pa.types.is_binary(column.type) else column.type)
        for column in images.type
    ]
    return images.cast(pa.struct(large))


def copy_group(file: Any, number: int, out: BinaryIO) -> int:
    """Writes the encoded images of a row group one after the other; returns their size in bytes."""
    encoded = pc.struct_field(read_group(file, number), "bytes")
    # a row without bytes takes no room, as in the manifest; the buffers are not copied
    for image in encoded.drop_null():
        out.write(image.as_buffer())
    return int(pc.sum(pc.binary_length(encoded)).as_py() or 0)
