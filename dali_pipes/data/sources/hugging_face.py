"""Parquet files that hold the images themselves, as Hugging Face's `datasets` writes them, beside
labels and further columns.

`embedded_files` says which files of a source are such. `scan_embedded` reads their columns
(`_read_columns`), then the images of each row group (`_read_groups`). A row group is the smallest
part of a Parquet file that can be read alone; loaders unpack it into one file in the cache, so an
image's place is its position in that file.
"""

import os
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dali_pipes.data.arrow_types import is_list, plain, with_fields
from dali_pipes.data.image_files.headers import Header, ScanOptions, examine
from dali_pipes.data.omissions import Omission
from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.data.shards.listing import is_object, list_objects, version_of
from dali_pipes.data.shards.parquet import features_of, group_name, image_column, read_group
from dali_pipes.data.shards.remote import open_object
from dali_pipes.data.sources.names import (
    Pattern,
    is_housekeeping,
    pattern_of_files,
    refuse_several_splits,
)
from dali_pipes.data.sources.rows.files import map_items
from dali_pipes.data.sources.rows.table_rows import build_rows, check_columns, read_row_labels
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.sources.split_column import Chosen, choose_rows
from dali_pipes.data.sources.table_columns import choose_label
from dali_pipes.data.table_options import TableOptions
from dali_pipes.errors import ManifestError

_SUFFIX = ".parquet"


def embedded_files(source: Path | str, path_column: str = "path") -> list[str]:
    """Returns the Parquet files that hold images, sorted: `source` itself, those of a folder, or
    those of a pattern such as train-*.parquet.

    For a URL all files of the pattern are taken, and those of a folder if there are no shards
    beside them.

    Args:
        path_column: a file that has this column lists images.

    Raises:
        ManifestError: they are of several splits, or nothing matches the pattern.
    """
    files = all_embedded_files(source, path_column)
    if len(files) > 1:
        refuse_several_splits(source, (file.rpartition("/")[2] for file in files))
    return files


def all_embedded_files(source: Path | str, path_column: str = "path") -> list[str]:
    """Returns the same as `embedded_files`, whatever splits the files are of."""
    pattern = pattern_of_files(source)
    # a store is not asked for the schema of each file, which would be a request for each
    if isinstance(source, str):
        return _list_remote(source, pattern)

    is_named = bool(pattern) or not source.is_dir()
    if pattern:
        folder = Path(pattern.folder)
        files = [
            folder / name for name in pattern.select(os.listdir(folder) if folder.is_dir() else ())
        ]
    elif source.is_dir():
        files = sorted(
            file for file in source.glob(f"*{_SUFFIX}") if not is_housekeeping(file.name)
        )
    else:
        files = [source]

    return [
        str(file)
        for file in files
        if file.suffix == _SUFFIX and _holds_images(file, path_column, is_named)
    ]


def _list_remote(url: str, pattern: Pattern | None) -> list[str]:
    folder = str(pattern.folder) if pattern else _folder_of(url)
    if pattern:
        names, _ = pattern.find()
    elif url.endswith(_SUFFIX):
        names = [url.rpartition("/")[2]] if is_object(url) else []
    else:
        names = sorted(list_objects(folder))
        names = [] if any(map(is_shard, names)) else names

    names = [name for name in names if not is_housekeeping(name)]
    return [f"{folder}/{name}" for name in names if name.endswith(_SUFFIX)]


def _folder_of(source: str) -> str:
    return source.rpartition("/")[0] if source.endswith(_SUFFIX) else source.rstrip("/")


def _holds_images(file: Path, path_column: str, is_named: bool) -> bool:
    if not file.exists():
        return False
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        do = "write or download it again (git lfs pull, if it is a pointer), or remove it"
        raise ManifestError(f"{file}: cannot be read as Parquet ({reason}); {do}") from None
    # in a folder a column of bytes may be anything; who names the file means it
    found = image_column(schema, str(file), or_bytes=is_named)
    return path_column not in schema.names and found is not None


def scan_embedded(
    file: Path | str,
    files: list[str],
    options: TableOptions,
    check: ScanOptions,
    split: str | None,
) -> tuple[Path | str, list[str], pa.Table, list[Omission], bool, Chosen]:
    """Returns root, class names, rows and notes of images that are in the Parquet files themselves,
    whether these name the classes, and which rows are wanted.

    The classes have the names that `datasets` notes in the files' metadata, if it does.
    """
    targets = check.targets
    if targets.mask:
        raise ManifestError(
            f"{file}: masks are not read out of Parquet files; leave out targets.mask"
        )

    columns, groups = zip(*map(_read_columns, files), strict=True)
    try:
        # without metadata, which may differ between the files
        table = pa.concat_tables(part.replace_schema_metadata() for part in columns)
    except pa.ArrowException as error:
        raise ManifestError(
            f"{files[0]}: it and the other Parquet files have not the same columns ({error})"
        ) from None

    # A class number must mean the same in all files.
    named = label_names(columns[0].schema)
    for other, part in zip(files, columns, strict=True):
        theirs = label_names(part.schema)
        if theirs and named and theirs != named:
            both = "so that a number means two; write both with the same"
            raise ManifestError(f"{other}: has other names of classes than {files[0]}, {both}")

    used = {options.label_column, *targets.named.values()}
    chosen = choose_rows(file, table, used, split, classes=named)
    paths, headers, places = _read_groups([group for of_file in groups for group in of_file], check)

    # If the default column is missing, the column of classes that `datasets` notes is taken.
    column = options.label_column
    taken = targets.named.values()
    whole = [
        name
        for name in named
        if name in table.column_names and name not in taken and not is_list(table[name].type)
    ]
    needed = check.with_labels and not targets.boxes
    if needed and column == "label" not in table.column_names and whole:
        column = choose_label(file, whole, "label_column")
        table = table.rename_columns(
            ["label" if name == column else name for name in table.column_names]
        )

    table = with_fields(table, targets.named.values())
    check_columns(file, table, options, check)
    labels = read_row_labels(file, table, options, check, column in named)
    classes, rows, notes = build_rows(file, table, paths, headers, places, options, labels, targets)

    # The labels, or those of the objects, are numbers of these names, if there are names for all.
    names = named.get(targets.box_labels or column, [])
    if classes and len(classes) <= len(names):
        classes = names

    root = (
        files[0].rpartition("/")[0]
        if isinstance(file, str)
        else file
        if file.is_dir()
        else file.parent
    )
    return root, classes, rows, notes, bool(names) and classes == names, chosen


def _read_columns(file: str) -> tuple[pa.Table, list[tuple[str, int, int]]]:
    """Returns the columns besides the images, and for each row group the file, its number, and the
    file's modification time.
    """
    try:
        with pq.ParquetFile(_open(file), pre_buffer=False) as parquet:
            # the images are read later, one row group after the other
            schema = parquet.schema_arrow
            images = image_column(schema, file)
            if images is None:
                raise ManifestError(
                    f"{file}: has no column of images, structs of bytes and path; leave it out"
                )

            table = plain(
                parquet.read([name for name in schema.names if name != images], use_threads=False)
            )
            time = version_of(file)[1]
            return table, [(file, number, time) for number in range(parquet.num_row_groups)]
    except (pa.ArrowException, OSError) as error:
        raise ManifestError(
            f"{file}: cannot be read ({error}); write it again, or leave it out"
        ) from None


def _read_groups(
    groups: list[tuple[str, int, int]], check: ScanOptions
) -> tuple[list[bytes], list[Header], dict[str, pa.Array]]:
    """Returns the path of each image, which is its row group's, its header, and the columns member,
    offset and file_bytes.
    """
    groups_read = list(
        map_items(
            partial(_read_group, check), groups, len(groups), "reading row groups", check, many=True
        )
    )

    # A row group is unpacked into one file, its images one after the other.
    paths, members, offsets, sizes = [], [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for (file, number, _), (headers, names) in zip(groups, groups_read, strict=True):
        lengths = np.array([header.bytes for header in headers], np.int64)
        paths += [group_name(os.fsencode(file.rpartition("/")[2]), number)] * len(headers)
        members += names
        offsets.append(np.cumsum(lengths) - lengths)
        sizes.append(np.full(len(headers), lengths.sum()))

    places = {
        "member": pa.array(members, pa.large_binary()),
        "offset": pa.array(np.concatenate(offsets), pa.int64()),
        "file_bytes": pa.array(np.concatenate(sizes), pa.int64()),
    }
    return paths, [header for headers, _ in groups_read for header in headers], places


def _read_group(
    check: ScanOptions, group: tuple[str, int, int]
) -> tuple[list[Header], list[bytes]]:
    """Returns the header of each image, and its name: its path in the data set, or its row."""
    file, number, mtime_ns = group
    try:
        images = read_group(_open(file), number).to_pylist()
    except OSError as error:
        raise ManifestError(
            f"{file}: {error}; write it again, or scan again when it can be read"
        ) from None

    headers, members = [], []
    for row, image in enumerate(images):
        # a row may be null, and not every file has paths
        encoded, path = (image or {}).get("bytes"), (image or {}).get("path")
        if isinstance(encoded, bytes):
            headers.append(examine(BytesIO(encoded), len(encoded), mtime_ns, check))
        else:
            why = (
                "only its path; embed the images (datasets.table.embed_table_storage)"
                if path
                else "no image"
            )
            headers.append(Header(0, mtime_ns, problem=f"no bytes in this row: {why}"))
        members.append(os.fsencode(path or f"row {row}"))
    return headers, members


def _open(file: str) -> Any:
    return open_object(file) if is_remote(file) else file


def label_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Returns the columns of classes, or of lists of them, and the names of each, as `datasets`
    notes them in the metadata. A field of a column of objects is "objects.category".
    """
    found: dict[str, list[str]] = {}
    for name, feature in features_of(schema).items():
        inner = _item(feature)
        fields = (
            {name: inner} if "_type" in inner else {f"{name}.{key}": inner[key] for key in inner}
        )
        for place, of in fields.items():
            label = _item(of)
            if label.get("_type") == "ClassLabel" and isinstance(label.get("names"), list):
                found[place] = list(map(str, label["names"]))
    return found


def _item(feature: Any) -> dict[str, Any]:
    """What is in lists, of lists, of a feature; {} if that is none of `datasets`."""
    while isinstance(feature, list) or (isinstance(feature, dict) and "feature" in feature):
        feature = feature["feature"] if isinstance(feature, dict) else (feature or [{}])[0]
    return feature if isinstance(feature, dict) else {}
