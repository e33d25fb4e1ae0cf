"""Questions about Arrow's types and what they can hold, and tables in the plain ones of them."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc


def null_count(column: pa.ChunkedArray) -> int:
    """The number of empty cells, and of empty positions in lists."""
    return int(
        column.null_count + (pc.list_flatten(column).null_count if is_list(column.type) else 0)
    )


def is_unicode(text: str) -> bool:
    """Whether Arrow can hold a text.

    JSON's escapes may give half a character, one from D800 to DFFF.
    """
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def plain(table: pa.Table) -> pa.Table:
    """The same table without views and dictionaries, which other programs write for the same
    values.
    """
    for place, field in enumerate(table.schema):
        kind = _plain_type(field.type)
        if kind != field.type:
            values = table.column(place).cast(kind)
            table = table.set_column(place, field.with_type(kind), values)
    return table


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_plain_type(kind.value_type))
    return kind


def with_fields(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """The table with a column of each of these fields, such as objects.bbox of the column objects.

    That is a struct of lists, or a list of structs. A name that is a column, or no field, changes
    nothing.
    """
    for name in names:
        head, dot, inner = name.partition(".")
        if not dot or name in table.column_names or head not in table.column_names:
            continue
        column = table[head].combine_chunks()
        if pa.types.is_struct(column.type) and column.type.get_field_index(inner) >= 0:
            table = table.append_column(name, pc.struct_field(column, inner))
        elif is_list(column.type) and _has_field(column.type.value_type, inner):
            # `flatten` leaves out what is below an empty cell, and a slice begins anywhere
            lengths = pc.fill_null(pc.list_value_length(column), 0)
            ends = pc.cumulative_sum(lengths.cast(pa.int64()))
            offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
            values = pc.struct_field(pc.list_flatten(column), inner)
            table = table.append_column(name, pa.LargeListArray.from_arrays(offsets, values))
    return table


def _has_field(kind: pa.DataType, name: str) -> bool:
    return pa.types.is_struct(kind) and kind.get_field_index(name) >= 0


def fields_of(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a struct, or of a list of structs; none of another type."""
    inner = kind.value_type if is_list(kind) else kind
    return list(inner) if pa.types.is_struct(inner) else []


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
