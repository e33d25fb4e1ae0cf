"""The table in a manifest: its columns (`SCHEMA`) and their types, and functions on such tables."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.image_files.wide import WIDE_FORMATS
from dali_pipes.data.objects import TARGET, TYPES
from dali_pipes.data.own_columns import COLUMN, stored_type

SCHEMA = pa.schema(
    {
        "path": pa.large_binary(),  # relative to the root, as the file system has it
        "label": pa.int32(),  # or another type of `stored_type`
        "bytes": pa.int64(),
        "mtime_ns": pa.int64(),
        "height": pa.int32(),
        "width": pa.int32(),
        "orientation": pa.int8(),
        "format": pa.string(),
        "decoded": pa.bool_(),  # whether the whole image was decoded, or only its header read
        "problem": pa.string(),  # null for a usable file
        # how a JPEG is coded, such as "4:2:0" (`Header.jpeg`); empty: another format
        "jpeg": pa.string(),
        "content": pa.binary(),  # a digest of its bytes (`Header.content`); empty: none
        # name of the image in a file that holds many; empty: the image is the file
        "member": pa.large_binary(),
        "offset": pa.int64(),  # where it begins in that file
        "file_bytes": pa.int64(),  # size of that file
    }
)
# the version of the rules that say what is an image, what is a class, how an image is turned, how
# a JPEG is described and how a file has what is known of all images
RULES = 6
# columns that a table may lack, with the value for an image in its own file
_WHOLE_FILE = {"member": b"", "offset": 0, "file_bytes": 0, "jpeg": "", "content": b""}


def cast_columns(table: pa.Table) -> pa.Table:
    """Returns the columns of a manifest in their types, without any others.

    Columns of images in shards may be missing; they get the values for images in their own files.
    """
    for name in _WHOLE_FILE.keys() - set(table.column_names):
        value = pa.scalar(_WHOLE_FILE[name], SCHEMA.field(name).type)
        table = table.append_column(name, pa.repeat(value, len(table)))

    own = ["label", *further_columns(table)]
    types = {name: _type(name, table.schema.field(name).type) for name in own}
    fields = [pa.field(field.name, types.pop(field.name, field.type)) for field in SCHEMA]
    schema = pa.schema([*fields, *types.items()])
    return table.select(schema.names).cast(schema)


def _type(name: str, kind: pa.DataType) -> pa.DataType:
    if name.startswith(TARGET):
        return TYPES[name.removeprefix(TARGET)]
    return stored_type(name, kind)


def own_columns(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name.startswith(COLUMN)]


def further_columns(table: pa.Table) -> list[str]:
    """Returns the names of the columns that not every manifest has: a table's own, and targets."""
    return [name for name in table.column_names if name.startswith((COLUMN, TARGET))]


def split_usable(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Returns the usable images, and the others. A chunk with rows of one kind only is not
    copied.
    """
    usable, others = [], []
    for rows in table.to_batches():
        good = pc.is_null(rows["problem"])
        if count := good.true_count:
            usable.append(rows if count == len(rows) else rows.filter(good))
        if count < len(rows):
            others.append(rows if not count else rows.filter(pc.invert(good)))
    return pa.Table.from_batches(usable, table.schema), pa.Table.from_batches(others, table.schema)


def are_wide(formats: pa.Array | pa.ChunkedArray) -> Any:
    """Returns which images have 16 bits a channel, by the column `format`."""
    return pc.is_in(formats, pa.array(list(WIDE_FORMATS.values())))


def replace_column(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, pa.field(name, values.type), values)
