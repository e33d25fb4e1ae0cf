"""Questions about Arrow's types and what they can hold."""

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


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )
