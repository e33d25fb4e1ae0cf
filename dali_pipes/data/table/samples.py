"""The rows of a manifest's usable images, by sample id."""

from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data.labels import COLUMN, is_numeric
from dali_pipes.data.table.columns import Numbers, Packed
from dali_pipes.data.table.mapped import MappedFile
from dali_pipes.data.table.schema import own_columns
from dali_pipes.errors import ManifestError

_BLOCK = 1 << 18  # rows


def validate(table: pa.Table) -> None:
    """
    Raises:
        ManifestError: its buffers are not what they are said to be.
    """
    try:
        table.validate(full=True)
    except pa.ArrowException as error:
        raise ManifestError(f"the manifest is damaged ({error}); scan the images again") from None


class Samples:
    """A table, all of it or chosen rows of it. Choosing copies nothing but the rows' numbers.

    Whatever is taken, ManifestError is raised if its file was changed since it was mapped, or is damaged there.

    Args:
        table: usable images only.
        files: those that the table lies in, if it is mapped.
        rows: (n,) the row of each sample; None: all rows in their order.
    """

    def __init__(self, table: pa.Table, files: tuple[MappedFile, ...] = (), rows: NDArray[np.int64] | None = None):
        self.whole, self.files, self.rows = table, files, rows
        self._views: dict[str, Any] = {}
        self._valid: set[str] = set()  # columns

    def __len__(self) -> int:
        return len(self.whole) if self.rows is None else len(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table(),)  # another process gets a copy

    def numbers(self, name: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """(N,) or (N, K), in the column's dtype."""
        return self._view(name, Numbers)[self._rows(ids)]

    def number(self, name: str, sample_id: int) -> int:
        return self._view(name, Numbers).item(self._rows(sample_id))

    def text(self, name: str, sample_id: int) -> bytes:
        return self._view(name, Packed).item(self._rows(sample_id))

    def matrix(self, name: str, ids: NDArray[np.int64], prefix: bytes = b"", fill: int = 0) -> NDArray[Any]:
        """(N, L): `prefix` and the text or list of each sample, filled up with `fill`."""
        return self._view(name, Packed).matrix(self._rows(ids), prefix, fill)

    def lengths(self, name: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._view(name, Packed).lengths(self._rows(ids))

    def all_empty(self, name: str) -> bool:
        """Whether no sample has a text there."""
        return self._view(name, Packed).all_empty or not any(self.lengths(name, ids).any() for ids in self.blocks())

    def joined(self, name: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """(total,) the texts or lists of these samples, one after the other."""
        return self._view(name, Packed).joined(self._rows(ids))

    def column(self, name: str) -> pa.ChunkedArray:
        self.validate([name])
        return self.whole[name] if self.rows is None else self.whole[name].take(pa.array(self.rows))

    def table(self) -> pa.Table:
        self.validate(self.whole.column_names)
        return self.whole if self.rows is None else self.whole.take(pa.array(self.rows))

    def select(self, ids: NDArray[np.int64]) -> Self:
        return type(self)(self.whole, self.files, ids if self.rows is None else self.rows[ids])

    def validate(self, names: list[str]) -> None:
        """Checks these columns as a whole, once, if they lie in a file: Arrow believes where a text is said to end."""
        self.check()
        for name in set(names) - self._valid if self.files else ():
            validate(self.whole.select([name]))
            self._valid.add(name)

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """All ids, so many at once that what is taken by them needs little memory."""
        for start in range(0, len(self), _BLOCK):
            yield np.arange(start, min(start + _BLOCK, len(self)))

    def check(self) -> None:
        """Checks that no file was changed since it was mapped."""
        for file in self.files:
            file.check()

    def _view(self, name: str, kind: type[Any]) -> Any:
        self.check()
        if name not in self._views:
            self._views[name] = kind(self.whole[name])
        return self._views[name]

    def _rows(self, ids: Any) -> Any:
        return ids if self.rows is None else self.rows[ids]


class OwnColumns(Mapping[str, Any]):
    """The columns that are not every manifest's, each made when it is asked for."""

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
