"""Images that lie as byte ranges in files of any kind: their headers, and where they are."""

import os
from collections.abc import Sequence

import pyarrow as pa

from dali_pipes.data.image_files.headers import (
    Header,
    ScanOptions,
    describe_os_error,
    examine,
    read_header,
)
from dali_pipes.data.range_file import open_part
from dali_pipes.data.reader import Extent
from dali_pipes.data.shards.listing import CHANGED


def place_columns(extents: Sequence[Extent]) -> dict[str, pa.Array]:
    """The columns of a manifest's table that say where in its file each image is."""
    return {
        "member": pa.array([os.fsencode(each.member) for each in extents], pa.large_binary()),
        "offset": pa.array([each.offset for each in extents], pa.int64()),
        "file_bytes": pa.array([each.stamp[0] for each in extents], pa.int64()),
    }


def read_part(check: ScanOptions, extent: Extent) -> Header:
    """The header of an image. A bad image, or a file that has changed, raises nothing."""
    if not extent.member:
        return read_header(extent.file, check)
    length, mtime_ns = extent.length, extent.stamp[1]
    try:
        with open(extent.file, "rb", buffering=0) as file:
            stat = os.fstat(file.fileno())
            if (stat.st_size, stat.st_mtime_ns) != extent.stamp:
                return Header(length, mtime_ns, problem=CHANGED)
            part = open_part(file.fileno(), extent.offset, length)
            return examine(part, length, mtime_ns, check)
    except OSError as error:
        return Header(length, mtime_ns, problem=describe_os_error(error))
