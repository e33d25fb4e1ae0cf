"""The table inside a manifest: its columns and their types, and how images become its rows."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.headers import Header, ScanOptions
from dali_pipes.data.labels import COLUMN, stored_type
from dali_pipes.data.shards.remote import FileVersion
from dali_pipes.data.shards.scan import ScannedMember

SCHEMA = pa.schema(
    {
        "path": pa.large_binary(),  # relative to the root, as the file system has it
        "label": pa.int32(),  # or another type of labels.py
        "bytes": pa.int64(),
        "mtime_ns": pa.int64(),
        "height": pa.int32(),
        "width": pa.int32(),
        "orientation": pa.int8(),
        "format": pa.string(),
        "decoded": pa.bool_(),  # whether the whole image was decoded, or only its header read
        "problem": pa.string(),  # null for a usable file
        "subsampling": pa.string(),  # of a JPEG's chroma, such as "4:2:0"; empty: another format, or a manifest without this column
        "member": pa.large_binary(),  # name of the image in a file that holds many; empty: it is the file
        "offset": pa.int64(),  # where it begins in that file
        "file_bytes": pa.int64(),  # size of that file
    }
)
_WHOLE_FILE = {"member": b"", "offset": 0, "file_bytes": 0}
_LATER = _WHOLE_FILE | {"subsampling": ""}  # for manifests of earlier versions, which lack these columns


def file_rows(paths: list[bytes], labels: pa.Array, headers: list[Header], columns: dict[str, pa.Array] | None = None) -> pa.Table:
    """One row for each file of one image."""
    numbers = [0] * len(paths)  # placeholder for the labels, whose type may differ from the schema's
    whole = [[value] * len(paths) for value in _WHOLE_FILE.values()]
    table = pa.table([paths, numbers, *map(list, zip(*headers, strict=True)), *whole], schema=SCHEMA)
    table = table.set_column(SCHEMA.get_field_index("label"), "label", labels)
    for name, values in (columns or {}).items():
        table = table.append_column(COLUMN + name, values)
    return typed(table)


def shard_rows(name: bytes, found: list[ScannedMember]) -> pa.Table:
    """One row for each image, usable or not, of the shard called `name`."""
    rows = [
        (name, -1 if header.problem else part.label, *header, part.member, part.offset, file_bytes)
        for part, header, file_bytes in found
    ]
    return pa.table(list(map(list, zip(*rows, strict=True))), schema=SCHEMA) if rows else SCHEMA.empty_table()


def unchanged_shard(stamp: FileVersion, rows: pa.Table, check: ScanOptions) -> bool:
    """Whether what is known of a shard is still valid, and came from a check as thorough as this one."""
    if (rows["file_bytes"][0].as_py(), rows["mtime_ns"][0].as_py()) != stamp:
        return False
    usable, pixels = rows["problem"].is_null().to_numpy(), rows["height"].to_numpy().astype(np.int64) * rows["width"].to_numpy()
    looked_at = check.verify == "header" or rows["decoded"].to_numpy()[usable].all()
    whole = pc.all(pc.greater(pc.binary_length(rows["member"]), 0)).as_py()
    return bool(whole and looked_at and not pixels[~usable].any() and (pixels <= check.max_pixels).all())


def typed(table: pa.Table) -> pa.Table:
    """The columns of a manifest in their types, without any others; columns that manifests of earlier versions lack are added."""
    table = _with_later_columns(table)
    own = ["label", *own_columns(table)]
    types = {name: stored_type(name, table.schema.field(name).type) for name in own}
    fields = [pa.field(field.name, types.pop(field.name, field.type)) for field in SCHEMA]
    schema = pa.schema([*fields, *types.items()])
    return table.select(schema.names).cast(schema)


def own_columns(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name.startswith(COLUMN)]


def _with_later_columns(table: pa.Table) -> pa.Table:
    """Adds the columns that manifests of earlier versions lack."""
    for name in _LATER.keys() - set(table.column_names):
        table = table.append_column(SCHEMA.field(name), pa.repeat(pa.scalar(_LATER[name], SCHEMA.field(name).type), len(table)))
    return table


def divided(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The usable images, and the others. A chunk that has none but one kind is not copied."""
    usable, others = [], []
    for rows in table.to_batches():
        good = pc.is_null(rows["problem"])
        if count := good.true_count:
            usable.append(rows if count == len(rows) else rows.filter(good))
        if count < len(rows):
            others.append(rows if not count else rows.filter(pc.invert(good)))
    return pa.Table.from_batches(usable, table.schema), pa.Table.from_batches(others, table.schema)
