"""Parquet files that hold the images themselves, as Hugging Face's `datasets` writes them, beside
labels and further columns.

`embedded_files` says which files of a source are such. `scan_embedded` reads their columns
(`_read_columns`), and `scan_rows` makes rows of them and of the images of each row group
(`_read_groups`), as it does for an open data set (hugging_face_sets.py).

A row group is the smallest part of a Parquet file that can be read alone; loaders unpack it into
one file in the cache, so an image's place is its position in that file.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dali_pipes.data.arrow_types import is_list, plain, with_fields
from dali_pipes.data.features import class_names, features_of, find_image_column, name_numbers
from dali_pipes.data.image_files.headers import Header, ScanOptions, examine
from dali_pipes.data.omissions import Omission
from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.data.shards.listing import is_object, list_objects, version_of
from dali_pipes.data.shards.parquet import group_name, read_group
from dali_pipes.data.shards.remote import open_object
from dali_pipes.data.sources.names import (
    Pattern,
    is_housekeeping,
    pattern_of_files,
    refuse_several_splits,
)
from dali_pipes.data.sources.options import SourceOptions
from dali_pipes.data.sources.rows.files import map_items
from dali_pipes.data.sources.rows.table_rows import build_rows, check_columns, read_row_labels
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.sources.split_column import Chosen, choose_rows, is_called_split
from dali_pipes.errors import ManifestError

_SUFFIX = ".parquet"


def embedded_files(source: Path | str, image_column: str = "path") -> list[str]:
    """Returns the Parquet files that hold images, sorted: `source` itself, those of a folder, or
    those of a pattern such as train-*.parquet.

    For a URL all files of the pattern are taken, and those of a folder if there are no shards
    beside them.

    Args:
        image_column: a file that has this column lists images.

    Raises:
        ManifestError: they are of several splits, or nothing matches the pattern.
    """
    files = all_embedded_files(source, image_column)
    if len(files) > 1:
        refuse_several_splits(source, (file.rpartition("/")[2] for file in files))
    return files


def all_embedded_files(source: Path | str, image_column: str = "path") -> list[str]:
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
        if file.suffix == _SUFFIX and _holds_images(file, image_column, is_named)
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


def _holds_images(file: Path, image_column: str, is_named: bool) -> bool:
    if not file.exists():
        return False
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        do = "write or download it again (git lfs pull, if it is a pointer), or remove it"
        raise ManifestError(f"{file}: cannot be read as Parquet ({reason}); {do}") from None
    # in a folder a column of bytes may be anything; who names the file means it
    found = find_image_column(file, schema, features_of(schema), or_bytes=is_named)
    return image_column not in schema.names and found is not None


def scan_embedded(
    file: Path | str,
    files: list[str],
    options: SourceOptions,
) -> tuple[Path | str, list[str], pa.Table, list[Omission], bool, Chosen]:
    """Returns root, class names, rows and notes of images that are in the Parquet files themselves,
    whether these name the classes, and which rows are wanted.

    The classes have the names that `datasets` notes in the files' metadata, if it does.
    """
    columns, groups = zip(*map(_read_columns, files), strict=True)
    try:
        # without metadata, which may differ between the files
        table = pa.concat_tables(part.replace_schema_metadata() for part in columns)
    except pa.ArrowException as error:
        raise ManifestError(
            f"{files[0]}: it and the other Parquet files have not the same columns ({error})"
        ) from None

    # A class number must mean the same in all files.
    named = class_names(features_of(columns[0].schema))
    for other, part in zip(files, columns, strict=True):
        theirs = class_names(features_of(part.schema))
        if theirs and named and theirs != named:
            both = "so that a number means two; write both with the same"
            raise ManifestError(f"{other}: has other names of classes than {files[0]}, {both}")

    every = [group for of_file in groups for group in of_file]
    read_images = partial(_read_groups, file, every, options)
    return scan_rows(file, table, named, options, read_images)


def scan_rows(
    place: Path | str,
    table: pa.Table,
    names: Mapping[str, list[str]],
    options: SourceOptions,
    read_images: Callable[[], tuple[Path | str, list[bytes], list[Header], dict[str, pa.Array]]],
) -> tuple[Path | str, list[str], pa.Table, list[Omission], bool, Chosen]:
    """Returns root, class names, rows and notes of rows that hold their images, whether the source
    names the classes, and which rows are wanted.

    Args:
        place: the data set, for errors.
        table: the columns besides the images.
        names: of columns of class numbers the names of the classes.
        read_images: reads the root, the path and the header of each image, and the columns that say
            where it is. It is called last, since it takes long.
    """
    targets = options.targets
    if targets.mask:
        raise ManifestError(
            f"{place}: masks are not read from rows that hold their images; leave out targets.mask"
        )
    if options.with_labels and not targets.boxes:
        options = _name_labels(place, table, names, options)
    label = options.label_column
    table = with_fields(plain(table), targets.named.values())
    check_columns(place, table, options)
    used = {label, *targets.named.values()}
    chosen = choose_rows(place, table, used, options.split, classes=names)
    labels = read_row_labels(place, table, options, label in names)

    root, paths, headers, places = read_images()
    classes, rows, notes = build_rows(place, table, paths, headers, places, options, labels)
    # the labels, or those of the objects
    classes, are_named, doubts = name_numbers(table, targets.box_labels or label, names, classes)
    return root, classes, rows, [*notes, *doubts], are_named, chosen


def _name_labels(
    place: Path | str,
    table: pa.Table,
    names: Mapping[str, list[str]],
    options: SourceOptions,
) -> SourceOptions:
    """Names the column of labels where nobody does and none is called label: the only one of class
    numbers.

    Raises:
        ManifestError: there are several, of which one has to be named.
    """
    if options.label_column != "label" or "label" in table.column_names:
        return options
    found = [
        name
        for name in names
        if name in table.column_names
        and name not in options.targets.named.values()
        and not is_list(table[name].type)
        and not is_called_split(name)
    ]
    if len(found) > 1:
        raise ManifestError(
            f"{place}: has several columns of classes, {', '.join(found)}; name one: "
            f"label_column={found[0]!r}"
        )
    return replace(options, label_column=found[0]) if found else options


def _read_columns(file: str) -> tuple[pa.Table, list[tuple[str, int, int]]]:
    """Returns the columns besides the images, and for each row group the file, its number, and the
    file's modification time.
    """
    try:
        with pq.ParquetFile(_open(file), pre_buffer=False) as parquet:
            # the images are read later, one row group after the other
            schema = parquet.schema_arrow
            images = find_image_column(file, schema, features_of(schema))
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
    source: Path | str, groups: list[tuple[str, int, int]], check: ScanOptions
) -> tuple[Path | str, list[bytes], list[Header], dict[str, pa.Array]]:
    """Returns the folder of the files, the path of each image, which is its row group's, its
    header, and the columns member, offset and file_bytes.
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
    root: Path | str = groups[0][0].rpartition("/")[0]
    if isinstance(source, Path):
        root = source if source.is_dir() else source.parent
    return root, paths, [header for headers, _ in groups_read for header in headers], places


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
