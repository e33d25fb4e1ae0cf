"""The rows of a manifest's usable images, by sample id.

`Samples` is the table, or chosen rows of it; `Samples[name]` is a `Column`, which returns numbers,
texts or lists for an array of ids. The table may be in a mapped file: only what is taken is copied.
So columns are read through NumPy views of Arrow's buffers (`_view`), whose offsets are checked as
they are used.

`take_objects` takes objects out of the columns in which a manifest has them. `Shards` numbers the
files of a manifest: the window shuffle reads a few files at once by these numbers.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data.objects import TARGET, Objects
from dali_pipes.data.own_columns import COLUMN, is_numeric
from dali_pipes.data.table.saved import MappedFile
from dali_pipes.data.table.schema import own_columns
from dali_pipes.errors import ManifestError

Ids = NDArray[np.int64]

_BLOCK = 1 << 18  # rows that are taken at once


def validate(table: pa.Table) -> None:
    # Arrow's full check, also of every offset of a text
    try:
        table.validate(full=True)
    except pa.ArrowException as error:
        raise ManifestError(f"the manifest is damaged ({error}); scan the images again") from None


class Samples:
    """A table, all of it or chosen rows of it. Choosing copies only the numbers of the rows.

    Every look-up raises ManifestError if a file was changed since it was mapped, or is damaged
    there.

    Args:
        table: usable images only.
        files: the files that the table is in, if it is mapped.
        rows: (n,) the row of each sample; None: all rows in their order.
    """

    def __init__(
        self,
        table: pa.Table,
        files: tuple[MappedFile, ...] = (),
        rows: NDArray[np.int64] | None = None,
    ):
        self.whole, self.files, self.rows = table, files, rows
        self._columns: dict[str, Column] = {}
        self._valid: set[str] = set()  # names of columns that were checked as a whole

    def __len__(self) -> int:
        return len(self.whole) if self.rows is None else len(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table(),)  # another process gets a copy

    def __getitem__(self, name: str) -> "Column":
        self.check()
        # made once for each column, and used for every batch
        if name not in self._columns:
            self._columns[name] = Column(self.whole[name], self.rows)
        return self._columns[name]

    def all_empty(self, name: str) -> bool:
        """Whether every sample has an empty text in this column."""
        return self[name].all_empty or not any(
            self[name].lengths(ids).any() for ids in self.blocks()
        )

    def column(self, name: str) -> pa.ChunkedArray:
        self.validate([name])
        return self.whole[name] if self.rows is None else self.whole[name].take(pa.array(self.rows))

    def table(self) -> pa.Table:
        self.validate(self.whole.column_names)
        return self.whole if self.rows is None else self.whole.take(pa.array(self.rows))

    def select(self, ids: NDArray[np.int64]) -> Self:
        return type(self)(self.whole, self.files, ids if self.rows is None else self.rows[ids])

    def validate(self, names: list[str]) -> None:
        """Checks these columns as a whole, once, if they are in a file.

        Arrow itself does not check where a text ends.
        """
        self.check()
        for name in set(names) - self._valid if self.files else ():
            validate(self.whole.select([name]))
            self._valid.add(name)

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Yields all ids, in blocks for which little memory is needed."""
        for start in range(0, len(self), _BLOCK):
            yield np.arange(start, min(start + _BLOCK, len(self)))

    def check(self) -> None:
        """Checks that no file was changed since it was mapped."""
        for file in self.files:
            file.check()


class Column:
    """One column by sample id: numbers, texts or lists.

    Args:
        column: the column of the whole table.
        rows: (n,) the row of each sample; None: all rows in their order.
    """

    def __init__(self, column: pa.ChunkedArray, rows: Ids | None):
        # one empty chunk at least, which has the dtype of a column without rows
        chunks = [chunk for chunk in column.chunks if len(chunk)] or [pa.array([], column.type)]
        self._chunks, self._ends = (
            [_view(chunk) for chunk in chunks],
            np.cumsum([len(chunk) for chunk in chunks]),
        )
        self._rows = rows

    def numbers(self, ids: Ids) -> NDArray[Any]:
        """Returns (N,) or (N, K) values in the column's dtype.

        The column has a number or boolean for each sample, or equally many for each.
        """
        if len(self._chunks) == 1:
            return self._chunks[0][self._rows_of(ids)]

        none = self._chunks[0][ids[:0]]
        values = np.empty((len(ids), *none.shape[1:]), none.dtype)
        for chunk, places, rows in self._by_chunk(ids):
            values[places] = chunk[rows]
        return values

    def number(self, sample_id: int) -> int:
        chunk, row = self._chunk_of(sample_id)
        return int(chunk[row])

    def text(self, sample_id: int) -> bytes:
        chunk, row = self._chunk_of(sample_id)
        start, end = chunk.bounds(np.int64(row))
        return chunk.values[start:end].tobytes()

    @property
    def all_empty(self) -> bool:
        """Whether all texts or lists in the table are empty."""
        return all(chunk.all_empty for chunk in self._chunks)

    def lengths(self, ids: Ids) -> Ids:
        """Returns (N,) the lengths of the texts or lists: bytes, or values."""
        lengths = np.empty(len(ids), np.int64)
        for _, places, start, end in self._bounds(ids):
            lengths[places] = end - start
        return lengths

    def concatenate(self, ids: Ids) -> NDArray[Any]:
        """Returns (total,) the texts or lists of these samples, one after the other."""
        rows = self._rows_of(ids)

        # Consecutive rows are one piece of the chunk, which is not copied.
        if len(self._chunks) == 1 and len(rows) and (np.diff(rows) == 1).all():
            start, end = self._chunks[0].bounds(rows)
            return self._chunks[0].values[start[0] : end[-1]]

        # Else each value is taken by its number: where its sample begins, and its place within it.
        lengths = self.lengths(ids)
        begin = lengths.cumsum() - lengths
        values = np.empty(int(lengths.sum()), self._chunks[0].values.dtype)
        for chunk, places, start, end in self._bounds(ids):
            within = np.arange((end - start).sum()) - np.repeat(
                (end - start).cumsum() - (end - start), end - start
            )
            values[np.repeat(begin[places], end - start) + within] = chunk.values[
                np.repeat(start, end - start) + within
            ]
        return values

    def matrix(self, ids: Ids, prefix: bytes = b"", fill: int = 0) -> NDArray[Any]:
        """Returns (N, L): `prefix` and the text or list of each sample, filled up with `fill`."""
        parts = list(self._bounds(ids))
        column = np.arange(
            max((int((end - start).max(initial=0)) for _, _, start, end in parts), default=0)
        )

        matrix = np.empty((len(ids), len(prefix) + len(column)), self._chunks[0].values.dtype)
        matrix[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
        for chunk, places, start, end in parts:
            # clip: short texts at the end of a chunk would reach beyond it; `fill` replaces what is
            # read there
            values = chunk.values.take(start[:, None] + column, mode="clip")
            values[column >= (end - start)[:, None]] = fill
            matrix[places, len(prefix) :] = values

        return matrix

    def _rows_of(self, ids: Any) -> Any:
        return ids if self._rows is None else self._rows[ids]

    def _chunk_of(self, sample_id: int) -> tuple[Any, int]:
        """Returns the chunk of a sample, and its row in the chunk."""
        row = self._rows_of(sample_id)
        number = int(np.searchsorted(self._ends, row, side="right")) if len(self._chunks) > 1 else 0
        return self._chunks[number], row - int(self._ends[number - 1]) if number else row

    def _by_chunk(self, ids: Ids) -> Iterator[tuple[Any, Any, Ids]]:
        """Yields each chunk that has any of the samples, the positions of these in `ids`, and their
        rows in the chunk.
        """
        rows = self._rows_of(ids)
        if len(self._chunks) == 1:
            yield self._chunks[0], slice(None), rows
            return

        numbers = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            yield (
                self._chunks[number],
                places,
                rows[places] - (self._ends[number - 1] if number else 0),
            )

    def _bounds(self, ids: Ids) -> Iterator[tuple[Any, Any, Ids, Ids]]:
        """Yields each chunk that has any of the samples, the positions of these in `ids`, and where
        their values begin and end in the chunk.
        """
        for chunk, places, rows in self._by_chunk(ids):
            yield chunk, places, *chunk.bounds(rows)


class OwnColumns(Mapping[str, Any]):
    """The columns that not every manifest has, by name; each is made when it is asked for."""

    def __init__(self, samples: Samples):
        self._samples, self._names = samples, own_columns(samples.whole)

    def __getitem__(self, name: str) -> NDArray[Any] | pa.Array:
        if COLUMN + name not in self._names:
            raise KeyError(name)
        if is_numeric(self._samples.whole[COLUMN + name].type):
            return self._samples[COLUMN + name].numbers(np.arange(len(self._samples)))
        return self._samples.column(COLUMN + name).combine_chunks()

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(COLUMN) for name in self._names)

    def __len__(self) -> int:
        return len(self._names)


class _Ragged:
    """One chunk of texts or lists: all values, and where those of each row begin and end."""

    def __init__(self, chunk: pa.Array):
        # Arrow has offsets of 32 bits for these types, and of 64 bits for the large ones
        small = (
            pa.types.is_list(chunk.type)
            or pa.types.is_binary(chunk.type)
            or pa.types.is_string(chunk.type)
        )

        _, offsets, *rest = chunk.buffers()
        kind = np.dtype(np.int32 if small else np.int64)
        # an empty chunk may have no buffers
        self._offsets = np.frombuffer(offsets or b"\0" * 8, kind)[
            chunk.offset : chunk.offset + len(chunk) + 1
        ]

        if pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type):
            values = chunk.values.to_numpy(zero_copy_only=False)
        else:
            values = np.frombuffer(rest[0] or b"", np.uint8)
        self._total = len(values)
        # NumPy's take fails on an empty array, with mode=clip too
        self.values = values if self._total else np.zeros(1, values.dtype)

    @property
    def all_empty(self) -> bool:
        return bool(self._offsets[0] == self._offsets[-1])

    def bounds(self, rows: Any) -> tuple[Any, Any]:
        """Returns where the values of these rows begin and end; ManifestError if that is outside
        all values.
        """
        start, end = self._offsets[rows].astype(np.int64), self._offsets[rows + 1].astype(np.int64)
        if (start < 0).any() or (end < start).any() or (end > self._total).any():
            raise ManifestError(
                "the manifest is damaged: a text in it has no end; scan the images again"
            )
        return start, end


class _Bits:
    """One chunk of booleans, which Arrow stores as bits; it is indexed like an array."""

    def __init__(self, chunk: pa.Array):
        self._bytes, self._offset = np.frombuffer(chunk.buffers()[1] or b"", np.uint8), chunk.offset

    def __getitem__(self, rows: Any) -> Any:
        # eight values in a byte, the lowest bit first
        place = rows + self._offset
        return (self._bytes[place >> 3] >> (place & 7) & 1).astype(bool)


def _view(chunk: pa.Array) -> Any:
    """Returns an array of numbers, or something that is indexed like one; for texts and lists
    `_Ragged`.
    """
    kind = chunk.type
    if pa.types.is_fixed_size_list(kind):
        values = _view(chunk.flatten())
        if isinstance(values, _Bits):
            values = values[np.arange(len(chunk) * kind.list_size)]
        return values.reshape(len(chunk), kind.list_size)
    if pa.types.is_boolean(kind):
        return _Bits(chunk)
    return chunk.to_numpy() if pa.types.is_primitive(kind) else _Ragged(chunk)


def take_objects(
    samples: Samples, ids: NDArray[Any], names: list[str], classes: int, root: Path | str
) -> Objects:
    """The objects of these samples, in pixels as stored.

    Args:
        names: the names of an object's keypoints.
        classes: how many there are.
        root: the root of the data set, for errors.

    Raises:
        ManifestError: their columns do not belong together, or a label is no class.
    """
    # a box is 4 numbers
    counts = samples[TARGET + "boxes"].lengths(ids) // 4

    # every other column must have as many objects for each image as there are boxes
    def values(name: str, width: int = 1) -> NDArray[Any] | None:
        if TARGET + name not in samples.whole.column_names:
            return None
        if (samples[TARGET + name].lengths(ids) != width * counts).any():
            raise ManifestError(
                f"{root}: the manifest has objects of which {name} are too few or too "
                "many; scan again"
            )
        return samples[TARGET + name].concatenate(ids)

    boxes, labels, points = (
        values("boxes", 4),
        values("box_labels"),
        values("keypoints", 3 * len(names)),
    )

    if boxes is None or labels is None:
        raise ManifestError(f"{root}: the manifest has objects without labels; scan again")

    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ManifestError(
            f"{root}: the manifest has objects outside its {classes} classes; scan again"
        )

    keypoints = None if points is None else points.reshape(len(labels), len(names), 3)
    return Objects(
        counts, boxes.reshape(-1, 4), labels, values("areas"), values("crowd"), keypoints
    )


class Shards(NamedTuple):
    """The files that samples are in, numbered in the order of their first samples.

    Attributes:
        numbers: (n,) the number of each sample's file.
        names: (S,) paths of the files, relative to the root.
        files: (S,) paths or URLs of the files, with the root.
        bytes: (S,) int64 sizes; 0 for a file that is one image.
        times: (S,) int64, the rest of their versions.
    """

    numbers: NDArray[np.int32]
    names: list[str]
    files: list[str]
    bytes: NDArray[np.int64]
    times: NDArray[np.int64]


def number_shards(samples: Samples, root: Path | str) -> Shards:
    """Numbers the files of all samples.

    Args:
        root: what the paths are relative to.
    """
    coded = samples.column("path").combine_chunks().dictionary_encode()
    numbers = coded.indices.to_numpy()
    names = [os.fsdecode(path) for path in coded.dictionary.to_pylist()]
    files = [os.path.join(root, name) for name in names]

    # the first sample of each file: numbers count up in the order of first use
    firsts = np.searchsorted(np.maximum.accumulate(numbers), np.arange(len(files)))

    return Shards(
        numbers,
        names,
        files,
        *(samples[name].numbers(firsts) for name in ("file_bytes", "mtime_ns")),
    )
