"""Parquet files that hold the images themselves, as Hugging Face's `datasets` writes them, beside
labels and further columns.

`embedded_files` says which files of a source are such. `read_embedded` reads their columns
(`_read_columns`), and `read_with_images` those and the images of each row group (`_read_groups`),
as it does for an open data set (hugging_face_sets.py).

A row group is the smallest part of a Parquet file that can be read alone; loaders unpack it into
one file in the cache, so an image's place is its position in that file.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dali_pipes.data.arrow_types import is_list, plain, with_fields
from dali_pipes.data.features import class_names, features_of, find_image_column
from dali_pipes.data.image_files.headers import Header, ScanOptions, examine
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.reader import Extent
from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.data.shards.listing import version_of
from dali_pipes.data.shards.parquet import group_name, read_group
from dali_pipes.data.shards.remote import open_object
from dali_pipes.data.sources.beside import count_beside
from dali_pipes.data.sources.names import (
    refuse_several_splits,
)
from dali_pipes.data.sources.options import SourceOptions
from dali_pipes.data.sources.rows.files import map_items
from dali_pipes.data.sources.rows.table_rows import FoundImages, SourceTable, read_rows
from dali_pipes.data.sources.shards import is_shard, list_files
from dali_pipes.data.sources.split_column import is_called_split
from dali_pipes.data.sources.table_columns import check_columns
from dali_pipes.data.spelling import argument
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
    folder, names, _ = list_files(source, lambda name: name.endswith(_SUFFIX))
    files = [os.path.join(folder, name) for name in names if name.endswith(_SUFFIX)]
    # a store is not asked for the schema of each file, which would be a request for each
    if isinstance(source, str):
        is_folder = folder == source.rstrip("/")
        return [] if is_folder and any(map(is_shard, names)) else files

    is_named = folder != source
    return [file for file in files if _holds_images(Path(file), path_column, is_named)]


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
    found = find_image_column(file, schema, features_of(schema), or_bytes=is_named)
    return path_column not in schema.names and found is not None


def read_embedded(place: Path | str, files: list[str], options: SourceOptions) -> ImageTable:
    """Reads images that are in the Parquet files themselves, and what is said of them.

    The classes have the names that `datasets` notes in the files' metadata, if it does.

    Args:
        place: the source that the files are of.
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
    return read_with_images(
        SourceTable(place, table, named), options, partial(_read_groups, place, every, options)
    )


def read_with_images(
    source: SourceTable, options: SourceOptions, read_images: Callable[[], FoundImages]
) -> ImageTable:
    """Reads rows that hold their images, as `read_rows` does."""
    place, table, targets = source.place, source.table, options.targets
    if targets.mask:
        raise ManifestError(
            f"{place}: masks are not read from rows that hold their images; leave out targets.mask"
        )
    if options.with_labels and not targets.boxes:
        options = _name_labels(source, options)
    table = with_fields(plain(table), targets.named.values())
    check_columns(place, table, options, label_option=source.label_option)
    return read_rows(source._replace(table=table), options, read_images)


def _name_labels(source: SourceTable, options: SourceOptions) -> SourceOptions:
    """Names the column of labels where nobody does and none is called label: the only one of class
    numbers.

    Raises:
        ManifestError: there are several, of which one has to be named.
    """
    table = source.table
    if options.label_column is not None or "label" in table.column_names:
        return options
    found = [
        name
        for name in source.names
        if name in table.column_names
        and name not in options.targets.named.values()
        and not is_list(table[name].type)
        and not is_called_split(name)
    ]
    if len(found) > 1:
        what = f"{source.place}: has several columns of classes, {', '.join(found)}; name one: "
        raise ManifestError(what, argument(source.label_option, found[0]))
    return replace(options, label_column=found[0]) if found else options


def place_columns(images: Sequence[Extent]) -> dict[str, pa.Array]:
    """The columns of a manifest's table that say where in its file each image is."""
    return {
        "member": pa.array([os.fsencode(each.member) for each in images], pa.large_binary()),
        "offset": pa.array([each.offset for each in images], pa.int64()),
        "file_bytes": pa.array([each.stamp[0] for each in images], pa.int64()),
    }


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
) -> FoundImages:
    """Finds the images of row groups; the path of each is its row group's."""
    read = partial(_read_group, check)
    found = list(map_items(read, groups, len(groups), "reading row groups", check, many=True))

    # A row group is unpacked into one file, its images one after the other.
    images: list[Extent] = []
    for (file, number, time), (headers, members) in zip(groups, found, strict=True):
        path = os.fsdecode(group_name(os.fsencode(file.rpartition("/")[2]), number))
        ends = list(accumulate(header.bytes for header in headers))
        for member, header, end in zip(members, headers, ends, strict=True):
            images.append(Extent(path, member, end - header.bytes, header.bytes, (ends[-1], time)))

    root: Path | str = groups[0][0].rpartition("/")[0]
    if isinstance(source, Path):
        root = source if source.is_dir() else source.parent
    return FoundImages(
        root,
        [os.fsencode(each.file) for each in images],
        [header for headers, _ in found for header in headers],
        place_columns(images),
        count_beside(source, root, {os.fsencode(file.rpartition("/")[2]) for file, *_ in groups}),
    )


def _read_group(check: ScanOptions, group: tuple[str, int, int]) -> tuple[list[Header], list[str]]:
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
        members.append(path or f"row {row}")
    return headers, members


def _open(file: str) -> Any:
    return open_object(file) if is_remote(file) else file
