"""Further columns of a table, which a manifest keeps as "column:NAME": numbers, text and lists.

They are stored as int64, float32 or bool, as lists of these, of a fixed length or of any, or as
text.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.arrow_types import is_list, is_text
from dali_pipes.errors import ManifestError

_EXACT = 2**24  # float32 has every whole number up to it
IMAGE_ID = "image_id"  # the column that has the ids of COCO's images
COLUMN = "column:"  # the prefix that a table's own columns have in a manifest


def read_columns(
    file: Path | str, table: pa.Table, used: Collection[str] = ("path", "label")
) -> dict[str, pa.Array]:
    """Reads the columns of numbers, of text and of lists of numbers, as "column:NAME".

    Columns in `used`, and those of other types, are left out.

    An empty cell becomes NaN in a column of numbers, which then is float32; the empty text; or an
    empty list.

    Raises:
        ManifestError: a column cannot be kept, or whole numbers in it would become others.
    """
    arrays = {
        name: column
        for name, column in zip(table.column_names, table.columns, strict=True)
        if is_kept_type(column.type)
    }

    kept: dict[str, pa.Array] = {}
    for name, column in arrays.items():
        if name in used:
            continue
        try:
            kept[COLUMN + name] = _to_stored(column.combine_chunks())
        except pa.ArrowException as error:
            raise ManifestError(
                f"{file}: the column {name}: a column cannot be used ({error}); fix it or leave it "
                "out"
            ) from None
    return kept


def to_float32(values: Any) -> Any:
    """Numbers or booleans as float32, with NaN for an empty cell.

    Raises:
        pa.ArrowInvalid: whole numbers, such as ids, would become others.
    """
    floats = values.cast(pa.float32(), safe=False)
    whole = values.cast(pa.float64(), safe=False)
    finite = pc.fill_null(pc.is_finite(whole), False)
    # fractions are rounded; ids must not be, as two could become one
    if pc.all(pc.or_(pc.invert(finite), pc.equal(whole, pc.floor(whole)))).as_py():
        # beyond 2**53 float64 would hide what float32 changes of integers
        is_changed = (
            pc.not_equal(floats.cast(pa.float64()), whole)
            if pa.types.is_floating(values.type)
            else pc.greater(pc.abs(whole), _EXACT)
        )
        lost = pc.and_(finite, is_changed)
        if pc.any(lost).as_py():
            first = values.filter(lost)[0].as_py()
            raise pa.ArrowInvalid(
                f"whole numbers beyond {_EXACT:,}, such as {first}, are not exact beside an empty "
                "cell or as float32; fill the empty cells, or write whole numbers or text"
            )
    return pc.fill_null(floats, float("nan"))


def stored_type(name: str, kind: pa.DataType) -> pa.DataType:
    """The type as which a saved manifest's label or column of this type is read.

    Raises:
        TypeError: there is none.
    """
    if name == "label":
        if pa.types.is_list(kind):
            return pa.list_(pa.int32())
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(pa.float32(), kind.list_size)
        return pa.float32() if pa.types.is_floating(kind) else pa.int32()

    if not is_kept_type(kind):
        raise TypeError(f"{name} is of type {kind}")
    return _column_type(kind)


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a stored column has one number, or the same count of them, for each image.

    Such columns go on to the batch.
    """
    texts = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    return not (texts or pa.types.is_large_list(kind))


def _to_stored(array: pa.Array) -> pa.Array:
    if is_text(array.type):
        return array.cast(pa.large_string()).fill_null("")

    if pa.types.is_fixed_size_list(array.type):
        if array.null_count:
            # all lists have the same length, so an empty one cannot stand for it
            raise pa.ArrowInvalid("a list is missing")
        return pa.FixedSizeListArray.from_arrays(_to_stored(array.flatten()), array.type.list_size)

    if is_list(array.type):
        ends = np.append(0, pc.fill_null(pc.list_value_length(array), 0).to_numpy().cumsum())
        return pa.LargeListArray.from_arrays(
            pa.array(ends, pa.int64()), _to_stored(pc.list_flatten(array))
        )

    # only a float can be NaN, so a column with an empty cell is of floats
    if array.null_count or pa.types.is_floating(array.type):
        return to_float32(array)
    # whole numbers beyond int64 are an error
    return array.cast(_column_type(array.type))


def _column_type(kind: pa.DataType) -> pa.DataType:
    if is_text(kind):
        return pa.large_string()
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_column_type(kind.value_type), kind.list_size)
    if is_list(kind):
        return pa.large_list(_column_type(kind.value_type))

    return (
        pa.float32()
        if pa.types.is_floating(kind)
        else pa.bool_()
        if pa.types.is_boolean(kind)
        else pa.int64()
    )


def is_kept_type(kind: pa.DataType) -> bool:
    """Whether a manifest keeps a column of this type."""
    item = kind.value_type if is_list(kind) else kind
    return (
        is_text(kind)
        or pa.types.is_integer(item)
        or pa.types.is_floating(item)
        or pa.types.is_boolean(item)
    )
