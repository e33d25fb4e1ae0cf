"""Objects out of the list columns of a table: of each row a list of lists of four numbers, or a list of four times as many."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.labels import is_list, is_text
from dali_pipes.data.objects import Targets
from dali_pipes.data.scanning.found import Found, object_namer
from dali_pipes.errors import ManifestError


class _Lists(NamedTuple):
    """A column of lists.

    Attributes:
        counts: (N,) objects of each row.
        wrong: (N,) whether a row's values cannot be divided among objects.
        leaves: (N,) values of each row.
        values: all of them, one after the other.
    """

    counts: NDArray[np.int64]
    wrong: NDArray[np.bool_]
    leaves: NDArray[np.int64]
    values: pa.Array


def read_objects(file: Path | str, table: pa.Table, targets: Targets) -> tuple[Found, dict[int, str]]:
    """The objects of all rows, and what is wrong with rows, which have none then.

    Raises:
        ManifestError: no such column, or one of another type.
    """
    widths = targets.widths
    lists = {each: _read(file, table, targets.named[each], width, each == "box_labels") for each, width in widths.items()}
    counts = lists["boxes"].counts
    wrong = np.any([each.wrong | (each.counts != counts) for each in lists.values()], axis=0)
    chosen = {each: some.values.filter(pa.array(np.repeat(~wrong, some.leaves))) for each, some in lists.items()}

    def numbers(name: str) -> NDArray[np.float64]:
        return chosen[name].to_numpy(zero_copy_only=False).reshape(-1, widths[name])

    counts = np.where(wrong, 0, counts)
    found = Found(
        counts,
        numbers("boxes"),
        chosen["box_labels"],
        object_namer(counts),
        areas=numbers("areas")[:, 0] if "areas" in widths else None,
        keypoints=numbers("keypoints") if "keypoints" in widths else None,
    )
    return found, dict.fromkeys(np.flatnonzero(wrong).tolist(), targets.misfit)


def _read(file: Path | str, table: pa.Table, name: str, width: int, labels: bool) -> _Lists:
    column = table[name].combine_chunks()
    found = _lists(column, width) if is_list(column.type) else None
    kind = found.values.type if found else column.type
    if found and labels and (pa.types.is_integer(kind) or is_text(kind)):
        return found._replace(wrong=found.wrong | _has_null(found))
    if found and not labels and (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        return found._replace(values=found.values.cast(pa.float64(), safe=False))
    wanted = "class numbers or names" if labels else "numbers"
    raise ManifestError(
        f"{file}: the column {name} is of type {column.type}; it must have lists of {wanted}, as Parquet holds them"
    )


def _lists(column: pa.Array, width: int) -> _Lists:
    counts, inner = _counts(column), pc.list_flatten(column)
    if not is_list(inner.type):
        return _Lists(counts // width, counts % width > 0, counts, inner)
    each, rows = _leaves(inner), np.repeat(np.arange(len(counts)), counts)
    leaves = np.bincount(rows, each, minlength=len(counts)).astype(np.int64)
    wrong = np.bincount(rows, each != width, minlength=len(counts)) > 0
    while is_list(inner.type):
        inner = pc.list_flatten(inner)
    return _Lists(counts, wrong, leaves, inner)


def _leaves(lists: pa.Array) -> NDArray[np.int64]:
    """(n,) how many numbers are in each list, in lists within it or not."""
    counts, inner = _counts(lists), pc.list_flatten(lists)
    if not is_list(inner.type):
        return counts
    rows = np.repeat(np.arange(len(counts)), counts)
    return np.bincount(rows, _leaves(inner), minlength=len(counts)).astype(np.int64)


def _counts(lists: pa.Array) -> NDArray[np.int64]:
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _has_null(found: _Lists) -> NDArray[np.bool_]:
    rows = np.repeat(np.arange(len(found.leaves)), found.leaves)
    return np.bincount(rows, found.values.is_null().to_numpy(zero_copy_only=False), minlength=len(found.leaves)) > 0
