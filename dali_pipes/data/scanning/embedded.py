"""Images that lie in Parquet files themselves, as Hugging Face's `datasets` writes them, beside labels and further columns."""

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
from dali_pipes.data.shards.parquet import group_name, image_column, read_group
from dali_pipes.errors import ManifestError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.progress import track
from dali_pipes.system.workers import in_order


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


def embedded_files(source: Path) -> list[Path]:
    """The Parquet files that hold images: `source`, those of a folder, or those of a pattern such as train-*.parquet; sorted."""
    if source.is_dir():
        source = source / "*.parquet"
    found = sorted(source.parent.glob(source.name)) if source.suffix == ".parquet" else []
    return [file for file in found if _holds_images(file)]


def _holds_images(file: Path) -> bool:
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError):
        return False
    return image_column(schema) is not None and "path" not in schema.names


def read_embedded(files: Sequence[Path], check: ScanOptions, workers: int | None, progress: bool) -> Embedded:
    """
    Raises:
        ManifestError: files whose columns are not the same, or that are broken.
    """
    tables, groups = [], []
    for file in files:
        try:
            with pq.ParquetFile(file) as opened:
                schema = opened.schema_arrow
                tables.append(opened.read([name for name in schema.names if name != image_column(schema)]))
                groups += [(file, number) for number in range(opened.num_row_groups)]
        except (pa.ArrowException, OSError) as error:
            raise ManifestError(f"{file}: cannot be read ({error}); write it again, or leave it out") from None
    try:
        table = pa.concat_tables(each.replace_schema_metadata() for each in tables)
    except pa.ArrowException as error:
        raise ManifestError(f"{files[0].parent}: its Parquet files have not the same columns ({error})") from None
    if check.verify == "full":
        decoders.load()
    read = in_order(partial(_read_group, check), groups, min(workers or 2 * available_cpus(), len(groups)))
    found = list(track(read, "reading row groups", len(groups), progress))
    lengths = [len(headers) for headers, _ in found]
    sizes = [sum(each.bytes for each in headers) for headers, _ in found]
    offsets = [np.append(0, np.cumsum([each.bytes for each in headers]))[:-1] for headers, _ in found]
    names = [group_name(os.fsencode(file.name), number) for file, number in groups]
    paths = [name for name, length in zip(names, lengths, strict=True) for _ in range(length)]
    places = {
        "member": pa.array([member for _, members in found for member in members], pa.large_binary()),
        "offset": pa.array(np.concatenate([np.zeros(0, np.int64), *offsets]), pa.int64()),
        "file_bytes": pa.array(np.repeat(sizes, lengths), pa.int64()),
    }
    return Embedded(table, paths, [each for headers, _ in found for each in headers], places, label_names(schema))


def _read_group(check: ScanOptions, group: tuple[Path, int]) -> tuple[list[Header], list[bytes]]:
    """The header of each image, and its name: its path in the data set, or its row."""
    file, number = group
    images, mtime_ns = read_group(file, number), os.stat(file).st_mtime_ns
    headers, members = [], []
    for row, image in enumerate(images.to_pylist()):
        encoded = (image or {}).get("bytes")
        if encoded is None:
            headers.append(Header(0, mtime_ns, problem="no image in this row, only its path; embed the images (datasets.table.embed_table_storage)"))
        else:
            headers.append(examine(BytesIO(encoded), len(encoded), mtime_ns, check))
        members.append(os.fsencode((image or {}).get("path") or f"row {row}"))
    return headers, members


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
