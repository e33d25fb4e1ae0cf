"""Images that a table lists: a CSV or Parquet file with the columns `path` and `label`, or Parquet
files that hold the images.

Hugging Face's `datasets` writes images into Parquet files, beside labels and further columns.
`scan_table` takes either kind: of a table of paths it reads the rows (`_read`), then the files
(`read_listed`); of Parquet files with images it reads the columns, then each row group
(`_scan_embedded`). `_rows` builds the manifest's rows in both cases.
"""

import json
import os
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dali_pipes.data.image_files.headers import Header, ScanOptions, examine
from dali_pipes.data.labels import Labels, is_text, no_labels, read_columns, read_labels, read_text
from dali_pipes.data.objects import BOX_LABELS, MASK, TARGET, TYPES, Targets
from dali_pipes.data.shards.parquet import group_name, image_column, read_group
from dali_pipes.data.shards.remote import (
    is_object,
    is_remote,
    list_objects,
    open_object,
    version_of,
)
from dali_pipes.data.sources.csv_tables import read_csv
from dali_pipes.data.sources.masks import check_mask_files
from dali_pipes.data.sources.names.housekeeping import is_housekeeping
from dali_pipes.data.sources.names.patterns import Pattern, pattern_of_files
from dali_pipes.data.sources.names.splits import refuse_mixed_files
from dali_pipes.data.sources.rows.files import file_rows, map_items
from dali_pipes.data.sources.rows.listed_files import read_listed
from dali_pipes.data.sources.rows.source_objects import number_labels, object_columns, read_cells
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.sources.table_columns import refuse_missing
from dali_pipes.data.table.schema import replace_column
from dali_pipes.data.table_options import TableOptions
from dali_pipes.errors import ManifestError

_SUFFIX = ".parquet"


def scan_table(
    file: Path | str, root: Path, options: TableOptions, check: ScanOptions
) -> tuple[Path | str, list[str], pa.Table]:
    """Returns the folder that the paths are relative to, class names and rows.

    Args:
        root: the folder of relative paths; if one path is absolute, all become relative to "/".
    """
    if files := embedded_files(file, options.path_column):
        return _scan_embedded(file, files, options, check)
    if isinstance(file, str):
        raise ManifestError(
            f"{file}: no such object; tables in an object store are Parquet files that hold "
            "the images"
        )

    table, targets, folder = _read(file, options, check), check.targets, root
    # labels before the images, which take longer to read
    labels = _read_labels(file, table, options, check)
    cells = table[options.path_column].cast(pa.large_binary()).fill_null(b"").to_pylist()
    masks = (
        [os.fsencode(path or "") for path in table[targets.mask].to_pylist()]
        if targets.mask
        else []
    )

    if b"/" in {path[:1] for path in cells + masks}:
        masks = [path and os.path.join(os.fsencode(folder), path).lstrip(b"/") for path in masks]
        root = Path("/")

    paths, headers = read_listed(file, folder, root, cells, check)
    columns: dict[str, pa.Array] = {}
    if targets.mask:
        headers = check_mask_files(root, masks, headers, check)
        columns[MASK] = pa.array(masks, TYPES["mask"])
    classes, rows = _rows(file, table, paths, headers, columns, options, labels, targets)
    return root, classes, _with_row_numbers(rows)


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
        folder = files[0].rpartition("/")[0]
        refuse_mixed_files(source, folder, [file.rpartition("/")[2] for file in files])
    return files


def all_embedded_files(source: Path | str, path_column: str = "path") -> list[str]:
    """Returns the same as `embedded_files`, whatever splits the files are of."""
    pattern = pattern_of_files(source)
    if isinstance(source, str):
        return _list_remote(source, pattern)

    if pattern:
        folder = Path(pattern.folder)
        found = [
            folder / name for name in pattern.select(os.listdir(folder) if folder.is_dir() else ())
        ]
    elif source.is_dir():
        found = sorted(
            file for file in source.glob(f"*{_SUFFIX}") if not is_housekeeping(file.name)
        )
    else:
        found = [source]

    return [
        str(file) for file in found if file.suffix == _SUFFIX and _holds_images(file, path_column)
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


def _holds_images(file: Path, path_column: str) -> bool:
    if not file.exists():
        return False
    try:
        schema = pq.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        do = "write or download it again (git lfs pull, if it is a pointer), or remove it"
        raise ManifestError(f"{file}: cannot be read as Parquet ({reason}); {do}") from None
    return image_column(schema) is not None and path_column not in schema.names


def _scan_embedded(
    file: Path | str, files: list[str], options: TableOptions, check: ScanOptions
) -> tuple[Path | str, list[str], pa.Table]:
    """Returns root, class names and rows of images that are in the Parquet files themselves.

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

    paths, headers, places = _read_groups([group for of_file in groups for group in of_file], check)

    # A class number must mean the same in all files.
    named = _label_names(columns[0].schema)
    for other, part in zip(files, columns, strict=True):
        theirs = _label_names(part.schema)
        if theirs and named and theirs != named:
            both = "so that a number means two; write both with the same"
            raise ManifestError(f"{other}: has other names of classes than {files[0]}, {both}")

    # If the default column is missing, the first column of classes that `datasets` notes is taken.
    column = options.label_column
    if column == "label" not in table.column_names and named:
        column = next(iter(named))
        table = table.rename_columns(
            ["label" if name == column else name for name in table.column_names]
        )

    _check_columns(file, table, options, check)
    labels = _read_labels(file, table, options, check)
    classes, rows = _rows(file, table, paths, headers, places, options, labels, targets)

    names = named.get(column, [])
    if classes and not targets.boxes and len(classes) <= len(names):
        classes = names

    root = (
        files[0].rpartition("/")[0]
        if isinstance(file, str)
        else file
        if file.is_dir()
        else file.parent
    )
    return root, classes, rows


def _read_columns(file: str) -> tuple[pa.Table, list[tuple[str, int, int]]]:
    """Returns the columns besides the images, and of each row group the file, its number, and the
    file's modification time.
    """
    try:
        with pq.ParquetFile(_open(file), pre_buffer=False) as parquet:
            schema = parquet.schema_arrow
            if image_column(schema) is None:
                raise ManifestError(
                    f"{file}: has no column of images, structs of bytes and path; leave it out"
                )

            table = parquet.read(
                [name for name in schema.names if name != image_column(schema)], use_threads=False
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
    found = list(
        map_items(
            partial(_read_group, check), groups, len(groups), "reading row groups", check, many=True
        )
    )

    # A row group is unpacked into one file, its images one after the other.
    paths, members, offsets, sizes = [], [], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for (file, number, _), (headers, names) in zip(groups, found, strict=True):
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
    return paths, [header for headers, _ in found for header in headers], places


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


def _label_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Returns the columns of classes and the names of each, as `datasets` notes them in the
    metadata.
    """
    # its JSON: {"info": {"features": {COLUMN: {"names": […], "_type": "ClassLabel"}}}}
    try:
        features: dict[str, Any] = json.loads((schema.metadata or {})[b"huggingface"])["info"][
            "features"
        ]
        labels = {
            name: feature
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
        return {name: list(map(str, feature["names"])) for name, feature in labels.items()}
    except (KeyError, TypeError, ValueError):
        return {}


def _read_labels(
    file: Path | str, table: pa.Table, options: TableOptions, check: ScanOptions
) -> Labels | None:
    """Returns the labels of the rows; None: none are read, since the targets are all that there is,
    or the objects have the labels.
    """
    if (
        not check.with_labels
        or check.targets.boxes
        or options.label_column not in table.column_names
    ):
        return None
    return read_labels(file, table[options.label_column], options)


def _rows(
    file: Path | str,
    table: pa.Table,
    paths: list[bytes],
    headers: list[Header],
    columns: dict[str, pa.Array],
    options: TableOptions,
    labels: Labels | None,
    targets: Targets,
) -> tuple[list[str], pa.Table]:
    """Returns class names, and a row for each image.

    `columns` are the manifest's columns besides those that the table has.
    """
    columns |= read_columns(
        file, table, {options.path_column, options.label_column, *targets.named.values()}
    )

    if targets.text:
        columns[TARGET + "text"] = (
            table[targets.text].combine_chunks().cast(pa.large_string()).fill_null("")
        )

    if targets.boxes:
        headers, objects = object_columns(read_cells(file, table, targets), headers, targets)
        classes, objects[BOX_LABELS], values = number_labels(file, objects[BOX_LABELS])
        return classes, file_rows(paths, values, headers, columns | objects)

    if labels is None:
        return [], file_rows(paths, no_labels(len(paths)), headers, columns)

    for row, why in labels.problems.items():
        # of the image's own problem only what is wrong: the advice comes once, at the end
        if problem := headers[row].problem:
            why = f"{problem.partition(';')[0]}, and {why}"
        why = f"{why} (row {row + 1}); give it one, or remove the row"
        headers[row] = headers[row]._replace(problem=why)
    return labels.classes, file_rows(paths, labels.values, headers, columns)


def _with_row_numbers(rows: pa.Table) -> pa.Table:
    """Returns the rows with the row in the table, from 1, in each problem, before the advice in
    it.
    """
    if rows["problem"].null_count == len(rows):
        return rows

    problems = rows["problem"].to_pylist()
    for place, problem in enumerate(problems):
        row = f"(row {place + 1})"
        if problem and row not in problem:
            what, semicolon, instead = problem.partition(";")
            problems[place] = f"{what} {row}{semicolon}{instead}"
    return replace_column(rows, "problem", pa.array(problems, pa.string()))


def _read(file: Path, options: TableOptions, check: ScanOptions) -> pa.Table:
    """Reads a CSV or Parquet file with its paths, its targets, and its labels if there are no
    targets.
    """
    targets = check.targets
    texts = {options.path_column, options.label_column, *filter(None, (targets.mask, targets.text))}

    if not file.is_file():
        needed = f"{options.path_column} and {options.label_column}"
        instead = f"give a CSV or Parquet table with the columns {needed}"
        raise ManifestError(f"{file}: no such file; {instead}")

    try:
        if file.suffix == ".parquet":
            table = pq.read_table(file)
            table = table.rename_columns([name.strip() for name in table.column_names])
        else:
            table = read_csv(file, options, texts)
    except (pa.ArrowException, OSError) as error:
        raise ManifestError(
            f"{file}: cannot be read as a table ({error}); write it again"
        ) from None

    if not len(table):
        raise ManifestError(f"{file}: has no row below its header; write one for each image")

    _check_columns(file, table, options, check, {options.path_column: "path_column"})
    for name in {options.path_column} & set(table.column_names):
        table = replace_column(table, name, _cast_paths(file, name, table[name]))

    # in Parquet labels have a type; in a CSV they are text, which may mean numbers
    if (
        file.suffix == ".parquet"
        or options.label_column not in table.column_names
        or not check.with_labels
    ):
        return table

    labels = table[options.label_column].combine_chunks()
    _refuse_second_header(file, table[options.path_column], labels, options)
    if options.label_separator is None:
        labels = read_text(file, labels, options.task)
    return replace_column(table, options.label_column, labels)


def _refuse_second_header(
    file: Path, paths: pa.ChunkedArray, labels: pa.Array, options: TableOptions
) -> None:
    """Raises ManifestError for a second header between the rows: its label would turn all labels
    into names.
    """
    marked = f"\ufeff{options.path_column}"  # with the byte-order mark of a file that was appended
    row = max(pc.index(paths, name).as_py() for name in (options.path_column, marked))
    if row >= 0 and labels[row].as_py().strip() == options.label_column:
        raise ManifestError(
            f"{file}: row {row + 1} is a header again, as of files that were joined; remove it"
        )


def _cast_paths(file: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    if pa.types.is_integer(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    what = f"the column {name} is of type {kind}"
    raise ManifestError(f"{file}: {what}; it must be text, the paths of the images")


def _check_columns(
    file: Path | str,
    table: pa.Table,
    options: TableOptions,
    check: ScanOptions,
    more: dict[str, str] | None = None,
) -> None:
    targets = check.targets
    needed = (more or {}) | {name: f"targets.{field}" for field, name in targets.named.items()}

    # Targets need no label; a label column that the user names is needed, unless objects have
    # labels.
    is_labelled = not targets.named or (options.label_column != "label" and not targets.boxes)
    if is_labelled and check.with_labels:
        needed[options.label_column] = "label_column"
    refuse_missing(file, table.column_names, needed)

    for name in filter(None, (targets.mask, targets.text)):
        if not is_text(table[name].type):
            raise ManifestError(
                f"{file}: the column {name} is of type {table[name].type}; it must be text"
            )
