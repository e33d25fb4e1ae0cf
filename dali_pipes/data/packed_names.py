"""Millions of names in two arrays."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


class PackedNames:
    """Names as bytes, by number. Forked workers share the arrays, and a batch is cut out of them without a Python loop."""

    def __init__(self, names: pa.ChunkedArray):
        column = names.cast(pa.large_binary()).combine_chunks()
        _, offsets, data = column.buffers()
        self.offsets = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        self.data = np.frombuffer(data or b"", np.uint8)

    def __getitem__(self, at: int) -> bytes:
        start, end = self.offsets[at : at + 2]
        return self.data[start:end].tobytes()

    def matrix(self, ids: NDArray[np.int64], prefix: bytes) -> NDArray[np.uint8]:
        """(N, L): `prefix` and the name of each id, padded with zeros."""
        start = self.offsets[ids]
        length = self.offsets[ids + 1] - start
        column = np.arange(length.max())
        rows = self.data.take(start[:, None] + column, mode="clip")
        rows *= column < length[:, None]
        matrix = np.empty((len(ids), len(prefix) + rows.shape[1]), np.uint8)
        matrix[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
        matrix[:, len(prefix) :] = rows
        return matrix
