"""Labels as a table has them, with the row of each for errors."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_text
from dali_pipes.errors import ManifestError, Spelling


class LabelCells(NamedTuple):
    """Labels of a table, none of them missing, with the row of each, from 0."""

    file: Path | str
    values: pa.Array
    rows: NDArray[np.int64]

    def refuse(self, bad: NDArray[np.bool_], why: str, *instead: str | Spelling) -> None:
        """Raises ManifestError for the first bad cell, if there is one.

        Args:
            why: the message; {value} in it is replaced by the cell.
            instead: what to do about it.
        """
        if bad.any():
            first = int(bad.argmax())
            what = why.format(value=self.values[first].as_py())
            raise ManifestError(f"{self.file}: {what} (row {self.rows[first] + 1}); ", *instead)


def simplify(values: pa.Array) -> pa.Array:
    """Converts dictionaries and decimals to plain types, and strips blanks from text."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return simplify(values.dictionary_decode())
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind):
        return values.cast(pa.float64())
    if is_text(kind) or pa.types.is_string_view(kind):
        return pc.utf8_trim_whitespace(values.cast(pa.large_string()))
    return values
