"""Images that lie as byte ranges in files of any kind, such as a database: `read_extents` reads
their headers and makes the images of a manifest. `read_part` and `place_columns` do one step of it.
"""

import os
from collections.abc import Sequence
from functools import partial
from io import BufferedReader
from pathlib import Path

import pyarrow as pa

from dali_pipes.data.image_files.headers import (
    Header,
    ScanOptions,
    describe_os_error,
    examine,
    read_header,
)
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.objects import NO_TARGETS
from dali_pipes.data.range_file import RangeFile
from dali_pipes.data.reader import Extent
from dali_pipes.data.shards.versions import CHANGED
from dali_pipes.data.sources.rows.files import map_items
from dali_pipes.data.sources.rows.table_rows import build_rows, read_row_labels
from dali_pipes.data.table_options import TableOptions

_READ_AT_ONCE = 8192  # bytes; enough for most headers


def read_extents(name: str, extents: Sequence[Extent], labels: Sequence[int] | None) -> ImageTable:
    """Reads the header of each image, which is a whole local file or a part of one.

    Args:
        name: what the images are of, for errors.
        labels: class numbers; None: the images have none.

    Raises:
        ManifestError: the labels make no sense.
    """
    check, options = ScanOptions(with_labels=labels is not None), TableOptions()
    table = pa.table({} if labels is None else {options.label_column: pa.array(labels)})
    headers = list(
        map_items(
            partial(read_part, check), extents, len(extents), "reading images", check, many=False
        )
    )

    # a manifest has relative paths only, here from / on
    paths = [os.fsencode(os.path.abspath(each.file)).lstrip(b"/") for each in extents]
    row_labels = read_row_labels(name, table, options, check)
    places = place_columns(extents)
    classes, rows = build_rows(name, table, paths, headers, places, options, row_labels, NO_TARGETS)
    return ImageTable.from_table(Path("/"), classes, rows)


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
    try:
        with open(extent.file, "rb", buffering=0) as file:
            stat = os.fstat(file.fileno())
            if (stat.st_size, stat.st_mtime_ns) != extent.stamp:
                return Header(extent.length, extent.stamp[1], problem=CHANGED)
            part = RangeFile.of(file.fileno(), extent.offset, extent.length)
            return examine(
                BufferedReader(part, _READ_AT_ONCE), extent.length, extent.stamp[1], check
            )
    except OSError as error:
        return Header(extent.length, extent.stamp[1], problem=describe_os_error(error))
