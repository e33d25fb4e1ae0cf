"""What becomes of each value of a mask: `Table`.

A mask is moved by transforms, and its values are replaced by code: `> 0`, `.long()`, a look-up of
classes, one-hot. As long as a new value depends on the old value alone, and not on where it stands
or what is around it, a table says it all.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """What each value becomes.

    Attributes:
        values: (K,), in ascending order.
        results: (K, C): C numbers for each value; (K, 1) for a plain number.
    """

    values: Values
    results: Values

    @classmethod
    def between(cls, before: Values, after: Values) -> "Table | None":
        """The table by which the values (H, W) became (H, W, C); None: there is none, since equal
        values became different ones.
        """
        known, flat = before.ravel(), after.reshape(before.size, -1)
        if not known.size:
            return None

        # `at`: one pixel of each value; without sorting, where values are few
        if known.dtype in (np.uint8, bool):
            numbers, places = known.astype(np.uint8), np.full(256, -1)
            places[numbers] = np.arange(known.size)
            at = places[places >= 0]
            sources = flat[places[numbers]]
        else:
            _, at, inverse = np.unique(known, return_index=True, return_inverse=True)
            sources = flat[at][inverse]

        is_float = flat.dtype.kind == "f"
        if not np.array_equal(sources, flat, equal_nan=is_float):
            return None
        return cls(known[at], flat[at])

    @property
    def key(self) -> tuple[Any, ...]:
        """What tables that are equal have in common."""
        return (str(self.results.dtype), self.values.tobytes(), self.results.tobytes())

    def joined(self, other: "Table") -> "Table | None":
        """Both in one; None: they contradict each other."""
        if self.results.shape[1:] != other.results.shape[1:]:
            return None
        if self.results.dtype != other.results.dtype:
            return None

        both = np.concatenate([self.values, other.values])
        values, first, inverse = np.unique(both, return_index=True, return_inverse=True)
        results = np.concatenate([self.results, other.results])
        is_float = results.dtype.kind == "f"
        if not np.array_equal(results[first][inverse], results, equal_nan=is_float):
            return None
        return Table(values, results[first])

    def then(self, other: "Table") -> "Table":
        """This table and then the other; without the values of which the other knows nothing."""
        numbers = self.results[:, 0]
        at = np.searchsorted(other.values, numbers).clip(0, len(other.values) - 1)
        known = other.values[at] == numbers
        return Table(self.values[known], other.results[at[known]])


def planes_of(value: Any) -> list[tuple[Values, str]]:
    """An array as (H, W, C), in each way that it may be meant, with the layout's name."""
    if value.ndim == 2:
        return [(value[..., None], "HW")]
    if value.ndim == 3:
        return [(value.transpose(1, 2, 0), "CHW"), (value, "HWC")]
    return []


def find_table(mask: Values, value: Values) -> tuple[Table, str] | None:
    """The table by which a value shows a mask (H, W), and its layout; None: it shows another one,
    or something else.
    """
    for planes, layout in planes_of(value):
        if planes.shape[:2] == mask.shape and (table := Table.between(mask, planes)):
            return table, layout
    return None
