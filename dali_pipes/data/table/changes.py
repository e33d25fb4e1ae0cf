"""Changes of a manifest's table: other roots and classes, joined tables, a column of sources."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.labels.reader import distinct_labels
from dali_pipes.data.objects import BOX_LABELS, MASK, TARGET
from dali_pipes.data.own_columns import COLUMN, to_float32
from dali_pipes.data.table.schema import further_columns, replace_column
from dali_pipes.errors import ManifestError

# targets that only some of the joined tables may have, and what the others get
_OPTIONAL_TARGETS = {
    TARGET + name: value
    for name, value in {"dropped": "", "mask_offset": 0, "mask_bytes": 0}.items()
}
# the column of a mixture with the number, from 0, of the source that each image is from
SOURCE = "source"


def rebase_paths(table: pa.Table, root: Path | str, to: Path | str) -> pa.Table:
    """Makes the paths of a table relative to `to`, which is `root` or above it."""
    if root == to:
        return table

    prefix = os.path.join(os.path.relpath(root, to), "")
    for name in {"path", MASK}.intersection(table.column_names):
        old, kind = table[name], table[name].type
        start, nothing = (pa.scalar(text).cast(kind) for text in (os.fsencode(prefix), b""))
        new = pc.binary_join_element_wise(start, old, nothing)
        # an empty path of a mask says that there is none, and stays empty
        table = replace_column(table, name, pc.if_else(pc.equal(old, nothing), old, new))
    return table


def renumber_classes(table: pa.Table, numbers: NDArray[np.int64]) -> pa.Table:
    """Replaces class numbers in labels and objects: n becomes numbers[n].

    The -1 of an unusable image stays, and so do numbers to predict.
    """
    if BOX_LABELS in table.column_names:
        objects = table[BOX_LABELS].combine_chunks()
        new = pa.array(numbers).take(objects.flatten())
        # the offsets of a slice are those of the whole array, unlike its flatten()
        offsets = pc.subtract(objects.offsets, objects.offsets[0])
        table = replace_column(table, BOX_LABELS, pa.LargeListArray.from_arrays(offsets, new))

    labels = table["label"].combine_chunks()
    if pa.types.is_list(labels.type):  # several classes for each image
        new = pa.array(numbers.astype(np.int32)).take(labels.flatten())
        rows = pa.ListArray.from_arrays(pc.subtract(labels.offsets, labels.offsets[0]), new)
        # an image may have had two classes that became one
        if len(set(numbers.tolist())) < len(numbers):
            rows = distinct_labels(
                rows.value_lengths().to_numpy(), new.to_numpy().astype(np.int64), len(numbers)
            )
        return replace_column(table, "label", rows)

    if not pa.types.is_integer(labels.type):
        return table

    old = labels.to_numpy()
    # -1, and what is no class, index the -1 at the end
    return replace_column(
        table,
        "label",
        pa.array(np.append(numbers, -1).astype(np.int32)[np.where(old < len(numbers), old, -1)]),
    )


def concat_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Joins tables into one.

    A table that lacks a column gets NaN for numbers, as for an empty cell, and the empty text for
    texts.

    Raises:
        ManifestError: their labels or columns are of different types.
    """
    kinds = sorted({str(table["label"].type) for table in tables})
    if len(kinds) > 1:
        raise ManifestError(
            f"manifests with labels of different types cannot be joined: {' and '.join(kinds)}"
        )

    names = dict.fromkeys(name for table in tables for name in further_columns(table))
    for name in names:
        tables = _add_column(tables, name)

    order = tables[0].column_names
    return pa.concat_tables([table.select(order) for table in tables])


def add_source(table: pa.Table, number: int) -> pa.Table:
    """Adds the column by which the samples of a mixture are drawn.

    Raises:
        ManifestError: there is such a column already.
    """
    if COLUMN + SOURCE in table.column_names:
        raise ManifestError(
            f"a manifest to mix has a column {SOURCE!r} already; mix its parts, or rename it"
        )
    return table.append_column(
        COLUMN + SOURCE, pa.repeat(pa.scalar(number, pa.int64()), len(table))
    )


def _add_column(tables: Sequence[pa.Table], name: str) -> list[pa.Table]:
    (kind, *others) = {table[name].type for table in tables if name in table.column_names}
    lacking = any(name not in table.column_names for table in tables)

    if lacking and name.startswith(TARGET) and name not in _OPTIONAL_TARGETS:
        label = name.removeprefix(TARGET).removeprefix("image:")
        raise ManifestError(
            f"only some of the manifests have {label}; join those that have the same targets"
        )

    if others or (lacking and pa.types.is_nested(kind)):
        label = name.removeprefix(COLUMN)
        raise ManifestError(
            f"the column {label} is not in all manifests, or of different types there; rename "
            "it or leave it out"
        )

    if not lacking:
        return list(tables)

    empty = _OPTIONAL_TARGETS.get(name, "")
    if name not in _OPTIONAL_TARGETS and not pa.types.is_large_string(kind):
        # integers become fractions as well, since only these have NaN
        kind, empty = pa.float32(), float("nan")

    def convert(column: pa.ChunkedArray) -> pa.ChunkedArray:
        try:
            return to_float32(column) if pa.types.is_float32(kind) else column.cast(kind)
        except pa.ArrowInvalid as error:
            raise ManifestError(
                f"the column {name.removeprefix(COLUMN)} is not in all manifests ({error}); leave "
                "it out (Manifest.without_columns), or give it to all"
            ) from None

    return [
        replace_column(table, name, convert(table[name]))
        if name in table.column_names
        else table.append_column(name, pa.repeat(pa.scalar(empty, kind), len(table)))
        for table in tables
    ]
