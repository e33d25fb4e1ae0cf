"""Rows taken out of Arrow's columns by their number. A column may lie in a mapped file: no more of it than these rows is copied."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.errors import ManifestError

Rows = NDArray[np.int64]


class _Chunked:
    def __init__(self, column: pa.ChunkedArray, view: Callable[[pa.Array], Any]):
        chunks = [chunk for chunk in column.chunks if len(chunk)] or [pa.array([], column.type)]
        self._chunks, self._ends = [view(chunk) for chunk in chunks], np.cumsum([len(chunk) for chunk in chunks])

    def _chunk_of(self, row: int) -> tuple[Any, int]:
        """The chunk of a row, and its number within the chunk."""
        if len(self._chunks) == 1:
            return self._chunks[0], row
        number = int(np.searchsorted(self._ends, row, side="right"))
        return self._chunks[number], row - int(self._ends[number - 1]) if number else row

    def _by_chunk(self, rows: Rows) -> Iterator[tuple[Any, Any, Rows]]:
        """Each chunk that has any of the rows, their places among them, and their numbers within the chunk."""
        if len(self._chunks) == 1:
            yield self._chunks[0], slice(None), rows
            return
        numbers = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            yield self._chunks[number], places, rows[places] - (self._ends[number - 1] if number else 0)


class Numbers(_Chunked):
    """A column of numbers or booleans, one for each row, or as many for each."""

    def __init__(self, column: pa.ChunkedArray):
        super().__init__(column, _view)

    def __getitem__(self, rows: Rows) -> NDArray[Any]:
        """(N,) or (N, K), in the column's dtype."""
        if len(self._chunks) == 1:
            return self._chunks[0][rows]
        none = self._chunks[0][rows[:0]]
        found = np.empty((len(rows), *none.shape[1:]), none.dtype)
        for chunk, places, some in self._by_chunk(rows):
            found[places] = chunk[some]
        return found

    def item(self, row: int) -> int:
        chunk, row = self._chunk_of(row)
        return int(chunk[row])


class Packed(_Chunked):
    """A column of texts, as bytes, or of lists of numbers of any lengths."""

    def __init__(self, column: pa.ChunkedArray):
        super().__init__(column, _Cuts)

    @property
    def all_empty(self) -> bool:
        return all(chunk.all_empty for chunk in self._chunks)

    def item(self, row: int) -> bytes:
        chunk, row = self._chunk_of(row)
        start, end = chunk.bounds(np.int64(row))
        return chunk.values[start:end].tobytes()

    def lengths(self, rows: Rows) -> NDArray[np.int64]:
        found = np.empty(len(rows), np.int64)
        for _, places, start, end in self._bounds(rows):
            found[places] = end - start
        return found

    def joined(self, rows: Rows) -> NDArray[Any]:
        """(total,) the values of these rows, one after the other."""
        if len(self._chunks) == 1 and len(rows) and (np.diff(rows) == 1).all():
            start, end = self._chunks[0].bounds(rows)
            return self._chunks[0].values[start[0] : end[-1]]
        lengths = self.lengths(rows)
        begin = lengths.cumsum() - lengths
        found = np.empty(int(lengths.sum()), self._chunks[0].values.dtype)
        for chunk, places, start, end in self._bounds(rows):
            within = np.arange((end - start).sum()) - np.repeat((end - start).cumsum() - (end - start), end - start)
            found[np.repeat(begin[places], end - start) + within] = chunk.values[np.repeat(start, end - start) + within]
        return found

    def matrix(self, rows: Rows, prefix: bytes = b"", fill: int = 0) -> NDArray[Any]:
        """(N, L): `prefix` and the values of each row, filled up with `fill`."""
        parts = list(self._bounds(rows))
        column = np.arange(max((int((end - start).max(initial=0)) for _, _, start, end in parts), default=0))
        matrix = np.empty((len(rows), len(prefix) + len(column)), self._chunks[0].values.dtype)
        matrix[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
        for chunk, places, start, end in parts:
            values = chunk.values.take(start[:, None] + column, mode="clip")
            values[column >= (end - start)[:, None]] = fill
            matrix[places, len(prefix) :] = values
        return matrix

    def _bounds(self, rows: Rows) -> Iterator[tuple[Any, Any, Rows, Rows]]:
        """Each chunk that has any of the rows, their places among them, and where their values begin and end in the chunk."""
        for chunk, places, some in self._by_chunk(rows):
            yield chunk, places, *chunk.bounds(some)


class _Cuts:
    """One chunk: all values, and where each row's begin and end."""

    def __init__(self, chunk: pa.Array):
        small = pa.types.is_list(chunk.type) or pa.types.is_binary(chunk.type) or pa.types.is_string(chunk.type)
        _, offsets, *rest = chunk.buffers()
        kind = np.dtype(np.int32 if small else np.int64)
        self._offsets = np.frombuffer(offsets or b"\0" * 8, kind)[chunk.offset : chunk.offset + len(chunk) + 1]
        if pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type):
            values = chunk.values.to_numpy(zero_copy_only=False)
        else:
            values = np.frombuffer(rest[0] or b"", np.uint8)
        self._total = len(values)
        self.values = values if self._total else np.zeros(1, values.dtype)  # NumPy takes nothing of what is empty

    @property
    def all_empty(self) -> bool:
        return bool(self._offsets[0] == self._offsets[-1])

    def bounds(self, rows: Rows | np.int64) -> tuple[Any, Any]:
        """
        Raises:
            ManifestError: a row would begin or end outside the values.
        """
        start, end = self._offsets[rows].astype(np.int64), self._offsets[rows + 1].astype(np.int64)
        if (start < 0).any() or (end < start).any() or (end > self._total).any():
            raise ManifestError("the manifest is damaged: a text in it has no end; scan the images again")
        return start, end


class _Bits:
    """Arrow keeps booleans as bits."""

    def __init__(self, chunk: pa.Array):
        self._bytes, self._offset = np.frombuffer(chunk.buffers()[1] or b"", np.uint8), chunk.offset

    def __getitem__(self, rows: Any) -> Any:
        place = rows + self._offset
        return (self._bytes[place >> 3] >> (place & 7) & 1).astype(bool)


def _view(chunk: pa.Array) -> Any:
    if pa.types.is_fixed_size_list(chunk.type):
        values = _view(chunk.flatten())
        if isinstance(values, _Bits):
            values = values[np.arange(len(chunk) * chunk.type.list_size)]
        return values.reshape(len(chunk), chunk.type.list_size)
    return _Bits(chunk) if pa.types.is_boolean(chunk.type) else chunk.to_numpy()
