"""Labels and columns of a table: one class for each image, several, or numbers to predict; numbers, text and lists beside them.

Labels are kept as Arrow's int32 (one class), list of int32 (any number of classes), float32 or fixed-size list of float32 (numbers
to predict); columns as int64, float32 or bool, fixed-size or large lists of these, or large strings.
"""

import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.errors import ManifestError

COLUMN = "column:"  # before the names of a table's own columns, in a manifest's
MAX_CLASSES = 1_000_000


def task_of(label: pa.DataType) -> str:
    """ "classification", "multilabel" or "regression"."""
    if pa.types.is_list(label):
        return "multilabel"
    return "classification" if pa.types.is_integer(label) else "regression"


def read_labels(file: Path | str, column: pa.ChunkedArray, separator: str | None) -> tuple[list[str], pa.Array]:
    """The class names and labels of a table's column; its type decides what it means.

    Integers are class numbers from 0, text is a class name, a list of either is any number of classes; fractions, and lists of them
    that all have the same length, are numbers to predict.

    Args:
        file: the table, for errors.
        separator: splits text into a list.
    """
    if separator is not None and not is_list(column.type):
        column = _split(column, separator)
    if null_count(column):
        raise ManifestError(f"{file}: every row needs a path and a label, and there must be at least one row")
    if is_list(column.type) and pa.types.is_floating(column.type.value_type):
        return [], _vectors(file, column)
    if pa.types.is_floating(column.type):
        return [], _finite(file, column.cast(pa.float32(), safe=False).combine_chunks())
    if not is_list(column.type):
        return _number_classes(file, column.combine_chunks())
    lengths = pc.list_value_length(column).to_numpy()
    classes, numbers = _number_classes(file, pc.list_flatten(column).combine_chunks())
    rows = np.repeat(np.arange(len(lengths)), lengths)
    pairs, counts = np.unique(rows * len(classes) + numbers.to_numpy(), return_counts=True)
    if (counts > 1).any():
        row, number = divmod(int(pairs[counts > 1][0]), len(classes))
        raise ManifestError(
            f"{file}: the label of row {row + 1} has the class {classes[number]} twice; list the numbers or names of an image's "
            "classes (of a vector of zeros and ones: the places of its ones)"
        )
    return classes, pa.ListArray.from_arrays(pa.array(np.append(0, lengths.cumsum()), pa.int32()), numbers)


def read_columns(file: Path | str, table: pa.Table, used: Collection[str] = ("path", "label")) -> dict[str, pa.Array]:
    """All columns of numbers, of text and of lists of numbers besides those that are used otherwise, as "column:NAME".

    An empty cell becomes NaN in a column of numbers, which is float32 then, the empty text, or a list of nothing.
    """
    found = {name: column for name, column in zip(table.column_names, table.columns, strict=True) if _kept(column.type)}
    try:
        return {COLUMN + name: _stored(column.combine_chunks()) for name, column in found.items() if name not in used}
    except pa.ArrowException as error:
        raise ManifestError(f"{file}: a column cannot be used ({error}); fix it or leave it out") from None


def stored_type(name: str, kind: pa.DataType) -> pa.DataType:
    """The type that a saved manifest's label or column of this type is read as; TypeError if there is none."""
    if name == "label":
        if pa.types.is_list(kind):
            return pa.list_(pa.int32())
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(pa.float32(), kind.list_size)
        return pa.float32() if pa.types.is_floating(kind) else pa.int32()
    if not _kept(kind):
        raise TypeError(f"{name} is of type {kind}")
    return _column_type(kind)


def distinct_labels(counts: NDArray[np.int64], numbers: NDArray[np.int64], classes: int) -> pa.Array:
    """Labels of several classes each: of every image the distinct ones among its numbers, ascending.

    Args:
        counts: (N,) how many numbers each image has.
        numbers: (M,) class numbers, those of each image one after the other.
        classes: how many classes there are.
    """
    pairs = np.unique(np.repeat(np.arange(len(counts)), counts) * max(classes, 1) + numbers)
    image, number = np.divmod(pairs, max(classes, 1))
    ends = np.append(0, np.bincount(image, minlength=len(counts)).cumsum())
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(number, pa.int32()))


def no_labels(images: int) -> pa.Array:
    """An empty list for each image."""
    return pa.array([[]] * images, pa.list_(pa.int32()))


def null_count(column: pa.ChunkedArray) -> int:
    """Empty cells, and empty places in lists."""
    return int(column.null_count + (pc.list_flatten(column).null_count if is_list(column.type) else 0))


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a stored column of this type has a number, or as many of them, for each image, and so goes on to the batch."""
    return not (pa.types.is_large_string(kind) or pa.types.is_large_list(kind))


def _split(column: pa.ChunkedArray, separator: str) -> pa.ChunkedArray:
    cells = column.cast(pa.string()).to_pylist()
    rows = [[part.strip() for part in (cell or "").split(separator) if part.strip()] for cell in cells]
    if all(re.fullmatch("-?[0-9]+", part) for row in rows for part in row):
        return pa.chunked_array([pa.array([list(map(int, row)) for row in rows], pa.list_(pa.int64()))])
    return pa.chunked_array([pa.array(rows, pa.list_(pa.string()))])


def _number_classes(file: Path | str, labels: pa.Array) -> tuple[list[str], pa.Array]:
    if not len(labels):
        raise ManifestError(f"{file}: no row has a label")
    if pa.types.is_integer(labels.type):
        low, high = pc.min_max(labels).as_py().values()
        if low < 0 or high >= MAX_CLASSES:
            raise ManifestError(f"{file}: labels run from {low} to {high}; number the classes from 0, without large gaps")
        return [str(label) for label in range(high + 1)], labels.cast(pa.int32())
    try:
        names = labels.cast(pa.string())
    except pa.ArrowException:
        why = f"labels of type {labels.type} make no sense"
        raise ManifestError(f"{file}: {why}; give class numbers, names, or fractions") from None
    classes = sorted(set(names.to_pylist()))
    return classes, pc.index_in(names, value_set=pa.array(classes, pa.string()))


def _vectors(file: Path | str, column: pa.ChunkedArray) -> pa.Array:
    lengths = np.unique(pc.list_value_length(column).to_numpy())
    if len(lengths) != 1 or not lengths[0]:
        raise ManifestError(f"{file}: labels that are lists of fractions must all have the same length, not {lengths.tolist()}")
    values = pc.list_flatten(column).cast(pa.float32(), safe=False).combine_chunks()
    return pa.FixedSizeListArray.from_arrays(_finite(file, values), int(lengths[0]))


def _finite(file: Path | str, values: pa.Array) -> pa.Array:
    if not pc.all(pc.is_finite(values)).as_py():
        raise ManifestError(f"{file}: a label is not finite; every image needs a number to predict")
    return values


def _stored(array: pa.Array) -> pa.Array:
    if is_text(array.type):
        return array.cast(pa.large_string()).fill_null("")
    if pa.types.is_fixed_size_list(array.type):
        if array.null_count:
            raise pa.ArrowInvalid("a list is missing")
        return pa.FixedSizeListArray.from_arrays(_stored(array.flatten()), array.type.list_size)
    if is_list(array.type):
        ends = np.append(0, pc.fill_null(pc.list_value_length(array), 0).to_numpy().cumsum())
        return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), _stored(pc.list_flatten(array)))
    if array.null_count:
        return array.cast(pa.float32(), safe=False).fill_null(float("nan"))
    return array.cast(_column_type(array.type), safe=not pa.types.is_floating(array.type))


def _column_type(kind: pa.DataType) -> pa.DataType:
    if is_text(kind):
        return pa.large_string()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_column_type(kind.value_type), kind.list_size)
    if is_list(kind):
        return pa.large_list(_column_type(kind.value_type))
    return pa.float32() if pa.types.is_floating(kind) else pa.bool_() if pa.types.is_boolean(kind) else pa.int64()


def _kept(kind: pa.DataType) -> bool:
    each = kind.value_type if is_list(kind) else kind
    return is_text(kind) or pa.types.is_integer(each) or pa.types.is_floating(each) or pa.types.is_boolean(each)


def is_unicode(text: str) -> bool:
    """Whether Arrow can hold it: JSON may have half a character, an escape from D800 to DFFF."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
