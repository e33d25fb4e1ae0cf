"""Reads the headers of many files, in several processes, and turns them into rows of a manifest."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from dali_pipes.data.arrow_types import is_text
from dali_pipes.data.image_files import decoders
from dali_pipes.data.image_files.headers import Header, ScanOptions, read_header
from dali_pipes.data.table.schema import SCHEMA, cast_columns
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.progress import track
from dali_pipes.system.workers import map_in_order

# the path relative to the root, and the header if an earlier scan knows it
File = tuple[bytes, Header | None]
T = TypeVar("T")

CHUNK = {"header": 256, "full": 8}  # files that a process takes at once
# up to this many files, one process takes less time than several
_ONE_PROCESS_MAX = {"header": 1024, "full": 16}


def map_items(
    work: Callable[[Any], T],
    items: Iterable[Any],
    total: int,
    what: str,
    check: ScanOptions,
    many: bool,
) -> Iterator[T]:
    """Yields `work` of each item, in order, with a progress bar.

    Several processes do it, unless a few files would take longer that way. `many`: each item, such
    as a shard, has many images.
    """
    if check.verify == "full":
        # imported before the processes are forked, which share them then
        decoders.import_decoders()

    few = not many and total <= _ONE_PROCESS_MAX[check.verify]
    # twice the cores, so that a slow disk is kept busy
    processes = 1 if few else min(check.workers or 2 * available_cpus(), total)

    return track(
        map_in_order(work, items, processes, 1 if many else CHUNK[check.verify]),
        what,
        total,
        check.progress,
    )


def read_headers(
    root: Path, files: Iterable[File], total: int, check: ScanOptions
) -> Iterator[Header]:
    """Yields the header of each file, in order. A file with a known header that has not changed
    since is not read.
    """
    return map_items(
        partial(_read, os.fsencode(root), check), files, total, "reading images", check, many=False
    )


def _read(base: bytes, check: ScanOptions, file: File) -> Header:
    path, known = os.path.join(base, file[0]), file[1]
    if known:
        with contextlib.suppress(OSError):
            stat = os.stat(path)
            if (stat.st_size, stat.st_mtime_ns) == (known.bytes, known.mtime_ns):
                return known
    return read_header(path, check)


def file_rows(
    paths: list[bytes],
    labels: pa.Array,
    headers: list[Header],
    columns: dict[str, pa.Array] | None = None,
) -> pa.Table:
    """Returns one row for each file of one image.

    `columns` has further columns: "column:NAME", "target:NAME", and the place of images in files of
    many ("member", "offset", "file_bytes").
    """
    cells = [pa.array(paths, pa.large_binary()), labels, *map(list, zip(*headers, strict=True))]
    return cast_columns(pa.table(dict(zip(SCHEMA.names, cells, strict=False)) | (columns or {})))


def unused_rows(like: pa.Table, problems: list[tuple[bytes, str]]) -> pa.Table:
    """Returns rows that only state a problem of something that is no image, by its path.

    They have the columns of the table `like`.
    """
    cells: dict[str, list[Any]] = {
        "path": [path for path, _ in problems],
        "problem": [why for _, why in problems],
    }
    rows = [
        cells.get(field.name, [_empty_value(field.type)] * len(problems)) for field in like.schema
    ]
    return pa.table(list(map(list, rows)), schema=like.schema)


def _empty_value(kind: pa.DataType) -> Any:
    if pa.types.is_nested(kind):
        return []
    return (
        b""
        if pa.types.is_large_binary(kind) or pa.types.is_binary(kind)
        else ""
        if is_text(kind)
        else pa.scalar(0).cast(kind).as_py()
    )
