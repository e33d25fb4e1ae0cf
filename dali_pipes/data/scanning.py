"""What a scan makes of a folder of classes, of shards, or of a table of paths: the class names, and a manifest's table.

What an earlier scan found, `known`, is its table; what has not changed since, and was checked as thoroughly, is not read again.
"""

import os
from collections.abc import Iterator
from itertools import chain, islice, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.earlier import Earlier, FolderRecords
from dali_pipes.data.headers import Header, ScanOptions
from dali_pipes.data.journal import Journal
from dali_pipes.data.listing import Folder, list_classes, list_folders, list_table, pieces, read_pieces
from dali_pipes.data.shards.remote import FileVersion
from dali_pipes.data.shards.scan import class_names, read_shards
from dali_pipes.data.table.schema import SCHEMA, file_rows, shard_rows, unchanged_shard
from dali_pipes.errors import ManifestError
from dali_pipes.system.progress import track

Scanned = tuple[list[str], pa.Table]


def scan_folder(
    root: Path, check: ScanOptions, earlier: Earlier, journal: Journal, workers: int | None, progress: bool
) -> tuple[list[str], pa.Table | None, FolderRecords]:
    """With the folders that were scanned; None for the table if no folder was touched since the earlier scan."""
    classes = list_classes(root)
    folders = list_folders(root, classes, earlier, check)
    if all(folder.names is None for folder in folders) and earlier.is_all_of([folder.path for folder in folders]):
        return classes, None, earlier.records
    total = sum(len(folder.names or ()) for folder in folders)
    listed = (
        piece
        for folder in folders
        if folder.names
        for piece in pieces(folder.path, folder.names, earlier.headers(folder.path), check)
    )
    headers = track(chain.from_iterable(read_pieces(root, listed, total, check, workers)), "reading images", total, progress)
    tables: list[pa.Table] = []
    records: dict[str, tuple[int, int, int]] = {}
    for folder in folders:
        rows = [earlier.rows(folder.path)] if folder.names is None else list(_rows(folder, headers, check, journal))
        tables += [_labelled(each, folder.label) for each in rows]
        usable = sum(each["problem"].null_count for each in rows)
        records[os.fsdecode(folder.path)] = (folder.mtime_ns, usable, sum(map(len, rows)) - usable)
    return classes, pa.concat_tables(tables), records


def _rows(folder: Folder, headers: Iterator[Header], check: ScanOptions, journal: Journal) -> Iterator[pa.Table]:
    for piece in pieces(folder.path, folder.names or [], {}, check):
        paths = [os.path.join(folder.path, name) for name in piece.names]
        rows = file_rows(paths, pa.array([folder.label] * len(paths)), list(islice(headers, len(paths))))
        journal.add(rows)
        yield rows


def _labelled(rows: pa.Table, label: int) -> pa.Table:
    field = rows.schema.field("label")
    return rows.set_column(rows.schema.get_field_index("label"), field, pa.repeat(pa.scalar(label, field.type), len(rows)))


def scan_table(
    file: Path, root: Path, separator: str | None, check: ScanOptions, workers: int | None, progress: bool
) -> tuple[Path, list[str], pa.Table]:
    """With the folder that its paths are relative to: `root`, or "/" if one of them is absolute."""
    classes, paths, labels, columns = list_table(file, separator)
    if any(path.startswith(b"/") for path in paths):
        paths = [os.path.join(os.fsencode(root), path).lstrip(b"/") for path in paths]
        root = Path("/")
    read = read_pieces(root, pieces(b"", paths, {}, check), len(paths), check, workers)
    headers = list(track(chain.from_iterable(read), "reading images", len(paths), progress))
    return root, classes, file_rows(paths, labels, headers, columns)


def scan_shards(
    root: Path | str,
    shards: dict[bytes, FileVersion],
    check: ScanOptions,
    known: pa.Table | None,
    workers: int | None,
    progress: bool,
) -> Scanned:
    """
    Args:
        known: of the same root.
    """
    tables = _unchanged(known, shards, check) if known is not None and len(known) else {}
    missing = {name: stamp for name, stamp in shards.items() if name not in tables}
    for name, found in zip(missing, read_shards(root, missing, check, workers, progress), strict=True):
        tables[name] = shard_rows(name, found)
    table = pa.concat_tables([tables[name] for name in shards])
    if not len(table):
        raise ManifestError(f"{root}: its {len(shards)} shards hold no image; each needs images with a label of the same key")
    classes = class_names(root, 1 + max(pc.max(table["label"]).as_py(), -1))
    unknown = pc.and_(pc.is_null(table["problem"]), pc.greater_equal(table["label"], len(classes)))
    problem = pc.if_else(unknown, f"its label is none of the {len(classes)} classes of classes.json", table["problem"])
    return classes, table.set_column(table.schema.get_field_index("problem"), SCHEMA.field("problem"), problem)


def _unchanged(known: pa.Table, shards: dict[bytes, FileVersion], check: ScanOptions) -> dict[bytes, pa.Table]:
    """The rows of each shard; one that could not be read to its end, or whose problem is not in the bytes alone, is left out."""
    codes = known["path"].combine_chunks().dictionary_encode()
    borders = np.flatnonzero(np.diff(codes.indices.to_numpy(), prepend=-1, append=-1)).tolist()
    rows: dict[bytes, pa.Table] = {}
    for start, end in pairwise(borders):  # a shard's usable images, and further on the others
        name, some = known["path"][start].as_py(), known.slice(start, end - start)
        rows[name] = pa.concat_tables([rows[name], some]).combine_chunks() if name in rows else some
    return {name: rows[name] for name in shards if name in rows and unchanged_shard(shards[name], rows[name], check)}
