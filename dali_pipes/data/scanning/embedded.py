"""Images that lie in Parquet files themselves, as Hugging Face's `datasets` writes them, beside labels and further columns."""

import fnmatch
import json
import os
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dali_pipes.data.scanning import decoders
from dali_pipes.data.scanning.headers import Header, ScanOptions, examine
from dali_pipes.data.scanning.shards import is_shard
from dali_pipes.data.shards.parquet import group_name, image_column, read_group
from dali_pipes.data.shards.remote import is_remote, list_objects, open_object, version_of
from dali_pipes.errors import ManifestError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.progress import track
from dali_pipes.system.workers import in_order

SUFFIX = ".parquet"


class Embedded(NamedTuple):
    """
    Attributes:
        table: the other columns of all files, one file after the other.
        paths: of each image its row group.
        headers: of the images.
        places: columns of the manifest: member, offset and file_bytes.
        label: the name of the column of classes, and their names; None: the files do not say.
    """

    table: pa.Table
    paths: list[bytes]
    headers: list[Header]
    places: dict[str, pa.Array]
    label: tuple[str, list[str]] | None


def embedded_files(source: Path | str) -> list[str]:
    """The Parquet files that hold images: `source`, those of a folder, or those of a pattern such as train-*.parquet; sorted.

    Of a URL all files of the pattern are taken, and those of a folder if there are no shards beside them.
    """
    if isinstance(source, str):
        folder, pattern = folder_of(source), source.rpartition("/")[2] if source.endswith(SUFFIX) else f"*{SUFFIX}"
        names = sorted(list_objects(folder))
        if not source.endswith(SUFFIX) and any(map(is_shard, names)):
            return []
        return [f"{folder}/{name}" for name in fnmatch.filter(names, pattern)]
    if source.is_dir():
        source = source / "*.parquet"
    found = sorted(source.parent.glob(source.name)) if source.suffix == ".parquet" else []
    return [str(file) for file in found if _holds_images(file)]


def folder_of(source: str) -> str:
    """That of the files of a URL, which may name a folder or files."""
    return source.rpartition("/")[0] if source.endswith(SUFFIX) else source.rstrip("/")


def _holds_images(file: Path) -> bool:
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError):
        return False
    return image_column(schema) is not None and "path" not in schema.names


def read_embedded(files: Sequence[str], check: ScanOptions, workers: int | None, progress: bool) -> Embedded:
    """
    Raises:
        ManifestError: files without images, whose columns are not the same, or that are broken.
    """
    footers = [_read_footer(file) for file in files]
    try:
        table = pa.concat_tables(each.columns.replace_schema_metadata() for each in footers)
    except pa.ArrowException as error:
        raise ManifestError(f"{files[0]}: it and the other Parquet files have not the same columns ({error})") from None
    groups = [(file, number, each.time) for file, each in zip(files, footers, strict=True) for number in range(each.groups)]
    if check.verify == "full":
        decoders.load()
    read = in_order(partial(_read_group, check), groups, min(workers or 2 * available_cpus(), len(groups)))
    found = list(track(read, "reading row groups", len(groups), progress))
    paths, members, offsets, sizes = [], [], [np.zeros(0, np.int64)], {}
    for (file, number, time), (headers, names) in zip(groups, found, strict=True):
        name = group_name(os.fsencode(file.rpartition("/")[2]), number)
        lengths = np.array([each.bytes for each in headers], np.int64)
        sizes[name] = int(lengths.sum()), time
        paths += [name] * len(headers)
        members += names
        offsets.append(np.cumsum(lengths) - lengths)
    places = {
        "member": pa.array(members, pa.large_binary()),
        "offset": pa.array(np.concatenate(offsets), pa.int64()),
        "file_bytes": pa.array([sizes[name][0] for name in paths], pa.int64()),
    }
    return Embedded(table, paths, [each for headers, _ in found for each in headers], places, label_names(footers[0].schema))


class _Footer(NamedTuple):
    """
    Attributes:
        columns: those besides the images.
        groups: how many row groups there are.
        time: of modification, in nanoseconds.
    """

    schema: pa.Schema
    columns: pa.Table
    groups: int
    time: int


def _read_footer(file: str) -> _Footer:
    def read(opened: Any) -> tuple[pa.Schema, pa.Table, int]:
        with pq.ParquetFile(opened, pre_buffer=False) as parquet:
            schema = parquet.schema_arrow
            names = [name for name in schema.names if name != image_column(schema)]
            return schema, parquet.read(names, use_threads=False), parquet.num_row_groups

    try:
        schema, columns, groups = read(_opened(file))
        if image_column(schema) is None:
            raise ManifestError(f"{file}: has no column of images, structs of bytes and path; leave it out")
        return _Footer(schema, columns, groups, version_of(file)[1])
    except (pa.ArrowException, OSError) as error:
        raise ManifestError(f"{file}: cannot be read ({error}); write it again, or leave it out") from None


def _read_group(check: ScanOptions, group: tuple[str, int, int]) -> tuple[list[Header], list[bytes]]:
    """The header of each image, and its name: its path in the data set, or its row."""
    file, number, mtime_ns = group
    headers, members = [], []
    for row, image in enumerate(_images(file, number)):
        encoded, path = (image or {}).get("bytes"), (image or {}).get("path")
        if isinstance(encoded, bytes):
            headers.append(examine(BytesIO(encoded), len(encoded), mtime_ns, check))
        else:
            why = "only its path; embed the images (datasets.table.embed_table_storage)" if path else "no image"
            headers.append(Header(0, mtime_ns, problem=f"no bytes in this row: {why}"))
        members.append(os.fsencode(path or f"row {row}"))
    return headers, members


def _images(file: str, number: int) -> list[dict[str, Any] | None]:
    try:
        images: list[dict[str, Any] | None] = read_group(_opened(file), number).to_pylist()
    except OSError as error:
        raise ManifestError(f"{file}: {error}; write it again, or scan again when it can be read") from None
    return images


def _opened(file: str) -> Any:
    return open_object(file) if is_remote(file) else file


def label_names(schema: pa.Schema) -> tuple[str, list[str]] | None:
    """The column of classes and their names, by what `datasets` notes of its columns; None: nothing."""
    try:
        features: dict[str, Any] = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        classes = {
            name: each["names"] for name, each in features.items() if isinstance(each, dict) and each.get("_type") == "ClassLabel"
        }
    except (KeyError, TypeError, ValueError):
        return None
    chosen = "label" if "label" in classes else next(iter(classes), None)
    return (chosen, [str(name) for name in classes[chosen]]) if chosen else None
