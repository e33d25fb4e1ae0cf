"""The rows of a manifest's usable images, by sample id.

`Samples` is the table, or chosen rows of it, and returns the cells of one column for an array of
ids: numbers, texts or lists. The table may be in a mapped file: only what is taken is copied.
Arrow follows the offsets of texts and lists without a check, and a damaged one would end the
process, so each `_Chunk` of a column checks those of the rows that are taken.

`take_objects` takes objects out of the columns in which a manifest has them. `Shards` numbers the
files of a manifest: the window shuffle reads a few files at once by these numbers.
"""

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_list
from dali_pipes.data.objects import TARGET, Objects
from dali_pipes.data.own_columns import COLUMN, is_numeric
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


class MappedFile:
    """A file that all processes of a machine map and share.

    If the file is replaced, as `write` does, those who have mapped it keep the old one. `check`
    notices a file that was written into; reading what has been cut off a file would end the process
    (SIGBUS).

    Raises:
        OSError, ValueError: it cannot be mapped.
    """

    def __init__(self, file: Path):
        self._file = file
        with file.open("rb") as opened:
            self.content = pa.py_buffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
            # of the mapped file itself, also after another one has taken its name
            self._number = os.dup(opened.fileno())
        self._stamp = self._read_stamp()

    def check(self) -> None:
        if self._read_stamp() != self._stamp:
            raise ManifestError(
                f"{self._file}: was changed while it was in use; write a new file and rename "
                "it, and start again"
            )

    def _read_stamp(self) -> tuple[int, int]:
        stat = os.fstat(self._number)
        return stat.st_size, stat.st_mtime_ns

    # os.close as a default: at the program's end the module `os` may be gone
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "_number"):
            close(self._number)


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
        self._columns: dict[str, tuple[list[_Chunk], Ids]] = {}
        self._valid: set[str] = set()  # names of columns that were checked as a whole

    def __len__(self) -> int:
        return len(self.whole) if self.rows is None else len(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table(),)  # another process gets a copy

    def numbers(self, name: str, ids: Ids) -> NDArray[Any]:
        """(N,) or (N, K) values in the column's dtype.

        The column has a number or boolean for each sample, or equally many for each.
        """
        parts, back = self._locate(name, ids)
        numbers = [chunk.numbers(rows) for chunk, rows in parts]
        return numbers[0] if back is None else np.concatenate(numbers)[back]

    def number(self, name: str, sample_id: int) -> int:
        return int(self.numbers(name, np.array([sample_id]))[0])

    def take(self, name: str, ids: Ids) -> pa.Array:
        """The texts or lists of these samples."""
        parts, back = self._locate(name, ids)
        cells = [chunk.take(rows) for chunk, rows in parts]
        return cells[0] if back is None else pa.concat_arrays(cells).take(pa.array(back))

    def values(self, name: str, ids: Ids) -> tuple[NDArray[Any], Ids]:
        """(total,) the texts or lists of these samples, one after the other, and (N,) the length of
        each: bytes, or values.
        """
        taken = _Chunk(self.take(name, ids))
        return taken.values(), np.diff(taken.offsets).astype(np.int64)

    def matrix(self, name: str, ids: Ids, prefix: bytes = b"", fill: int = 0) -> NDArray[Any]:
        """(N, L): `prefix` and the text or list of each sample, filled up with `fill`."""
        parts, back = self._locate(name, ids)
        width = max(int(chunk.lengths(rows).max(initial=0)) for chunk, rows in parts)
        padded = [chunk.pad(rows, width, fill) for chunk, rows in parts]
        matrix = padded[0] if back is None else np.concatenate(padded)[back]

        start = np.frombuffer(prefix, np.uint8)
        return np.hstack([np.tile(start, (len(ids), 1)), matrix]) if prefix else matrix

    def text(self, name: str, sample_id: int) -> bytes:
        parts, _ = self._locate(name, np.array([sample_id]))
        chunk, rows = parts[0]
        return chunk.text(rows[0])

    def lengths(self, name: str, ids: Ids) -> Ids:
        """(N,) the lengths of the texts or lists: bytes, or values."""
        parts, back = self._locate(name, ids)
        lengths = [chunk.lengths(rows) for chunk, rows in parts]
        return lengths[0] if back is None else np.concatenate(lengths)[back]

    def all_empty(self, name: str) -> bool:
        """Whether every sample has an empty text in this column."""
        chunks, _ = self._chunks(name)
        return all(chunk.all_empty for chunk in chunks) or not any(
            self.lengths(name, ids).any() for ids in self.blocks()
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

    def _chunks(self, name: str) -> tuple[list["_Chunk"], Ids]:
        """The chunks of a column, and the row at which each ends."""
        self.check()
        # made once for each column, and used for every batch
        if name not in self._columns:
            column = self.whole[name]
            # one chunk at least, which has the type of a column without rows
            cells = [chunk for chunk in column.chunks if len(chunk)] or [pa.array([], column.type)]
            self._columns[name] = [_Chunk(each) for each in cells], np.cumsum(list(map(len, cells)))
        return self._columns[name]

    def _locate(self, name: str, ids: Ids) -> tuple[list[tuple["_Chunk", Ids]], Ids | None]:
        """Finds the rows of samples in the chunks of a column.

        Returns:
            Each chunk that has some of them, with their rows in it; and where each sample is among
            all these rows, None: in the order of `ids`.
        """
        chunks, ends = self._chunks(name)
        rows = ids if self.rows is None else self.rows[ids]
        if len(chunks) == 1 or not len(rows):
            return [(chunks[0], rows)], None

        # chunk by chunk: for a `take` from several Arrow copies all of them
        numbers = np.searchsorted(ends, rows, side="right")
        parts = [
            (chunks[number], rows[numbers == number] - (ends[number - 1] if number else 0))
            for number in np.unique(numbers).tolist()
        ]
        return parts, np.argsort(np.argsort(numbers, kind="stable"))


class _Chunk:
    """One chunk of a column: numbers, or texts or lists whose offsets are checked as they are used.

    Args:
        cells: the chunk.
    """

    def __init__(self, cells: pa.Array):
        self._cells, kind = cells, cells.type
        if pa.types.is_fixed_size_list(kind) or pa.types.is_primitive(kind):
            return

        # Arrow has offsets of 32 bits for these types, and of 64 bits for the large ones
        is_small = pa.types.is_list(kind) or pa.types.is_binary(kind) or pa.types.is_string(kind)
        _, offsets, content, *_ = cells.buffers()
        # an empty chunk may have no buffers
        self.offsets = np.frombuffer(offsets or b"\0" * 8, np.int32 if is_small else np.int64)[
            cells.offset : cells.offset + len(cells) + 1
        ]
        self._bytes = None if is_list(kind) else np.frombuffer(content or b"", np.uint8)
        self._total = len(cells.values if self._bytes is None else self._bytes)

    def numbers(self, rows: Ids) -> NDArray[Any]:
        # NumPy takes from its view of numbers much faster than Arrow from them
        return self._view[rows] if self._view is not None else _to_numpy(self._copy(rows))

    @cached_property
    def _view(self) -> NDArray[Any] | None:
        """The numbers without a copy; None: they are booleans, which Arrow stores as bits."""
        kind = self._cells.type
        item = kind.value_type if pa.types.is_fixed_size_list(kind) else kind
        return None if pa.types.is_boolean(item) else _to_numpy(self._cells)

    def take(self, rows: Ids) -> pa.Array:
        """The texts or lists in these rows."""
        # Arrow follows damaged offsets, and the process ends
        self.bounds(rows)
        # consecutive rows, as whenever all are read, need no copy
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
            return self._cells.slice(rows[0], len(rows))
        return self._copy(rows)

    def _copy(self, rows: Ids) -> pa.Array:
        return self._cells.take(pa.array(rows, pa.int64()))

    @property
    def all_empty(self) -> bool:
        """Whether all texts or lists are empty."""
        return bool(self.offsets[0] == self.offsets[-1])

    def values(self) -> NDArray[Any]:
        """All texts or lists, one after the other."""
        if self._bytes is None:
            return _to_numpy(self._cells.flatten())
        return self._bytes[self.offsets[0] : self.offsets[-1]]

    def lengths(self, rows: Ids) -> Ids:
        start, end = self.bounds(rows)
        lengths: Ids = (end - start).astype(np.int64)
        return lengths

    def pad(self, rows: Ids, width: int, fill: int) -> NDArray[Any]:
        """(N, width) each text or list, filled up: faster than by Arrow's `take`."""
        start, end = self.bounds(rows)
        values = _to_numpy(self._cells.values) if self._bytes is None else self._bytes
        if not len(values):  # NumPy's take fails, with mode=clip too
            return np.full((len(rows), width), fill, values.dtype)

        column = np.arange(width)
        # clip: a short text at the end would reach beyond all values; `fill` replaces what is read
        matrix = values.take(start[:, None] + column, mode="clip")
        matrix[column >= (end - start)[:, None]] = fill
        return matrix

    def text(self, row: np.int64) -> bytes:
        start, end = self.bounds(row)
        assert self._bytes is not None
        return self._bytes[start:end].tobytes()

    def bounds(self, rows: Any) -> tuple[Any, Any]:
        """Where the texts or lists in these rows begin and end.

        Raises:
            ManifestError: that is outside all values.
        """
        start, end = self.offsets[rows], self.offsets[rows + 1]
        if ((start < 0) | (end < start) | (end > self._total)).any():
            raise ManifestError(
                "the manifest is damaged: a text in it has no end; scan the images again"
            )
        return start, end


def _to_numpy(cells: pa.Array) -> NDArray[Any]:
    if pa.types.is_fixed_size_list(cells.type):
        return _to_numpy(cells.flatten()).reshape(len(cells), cells.type.list_size)
    numbers: NDArray[Any] = cells.to_numpy(zero_copy_only=False)
    return numbers


class OwnColumns(Mapping[str, Any]):
    """The columns that not every manifest has, by name; each is made when it is asked for."""

    def __init__(self, samples: Samples):
        self._samples, self._names = samples, own_columns(samples.whole)

    def __getitem__(self, name: str) -> NDArray[Any] | pa.Array:
        if COLUMN + name not in self._names:
            raise KeyError(name)
        if is_numeric(self._samples.whole[COLUMN + name].type):
            return self._samples.numbers(COLUMN + name, np.arange(len(self._samples)))
        return self._samples.column(COLUMN + name).combine_chunks()

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(COLUMN) for name in self._names)

    def __len__(self) -> int:
        return len(self._names)


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
    counts = samples.lengths(TARGET + "boxes", ids) // 4

    # every other column must have as many objects for each image as there are boxes
    def take(name: str, width: int = 1) -> NDArray[Any] | None:
        if TARGET + name not in samples.whole.column_names:
            return None
        values, lengths = samples.values(TARGET + name, ids)
        if (lengths != width * counts).any():
            raise ManifestError(
                f"{root}: the manifest has objects of which {name} are too few or too "
                "many; scan again"
            )
        return values

    boxes, labels, points = (
        take("boxes", 4),
        take("box_labels"),
        take("keypoints", 3 * len(names)),
    )

    if boxes is None or labels is None:
        raise ManifestError(f"{root}: the manifest has objects without labels; scan again")

    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ManifestError(
            f"{root}: the manifest has objects outside its {classes} classes; scan again"
        )

    keypoints = None if points is None else points.reshape(len(labels), len(names), 3)
    return Objects(counts, boxes.reshape(-1, 4), labels, take("areas"), take("crowd"), keypoints)


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
        *(samples.numbers(name, firsts) for name in ("file_bytes", "mtime_ns")),
    )
