"""Images that a table lists: a CSV or Parquet file with the columns `path` and `label`."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from dali_pipes.data.labels import is_text, read_columns, read_labels
from dali_pipes.data.objects import BOX_LABELS, TARGET, Targets
from dali_pipes.data.scanning.embedded import Embedded, embedded_files, folder_of, read_embedded
from dali_pipes.data.scanning.files import file_rows, read_headers
from dali_pipes.data.scanning.found import checked, numbered
from dali_pipes.data.scanning.headers import Header, ScanOptions
from dali_pipes.data.scanning.listed_objects import read_objects
from dali_pipes.data.scanning.masks import mask_column, with_masks
from dali_pipes.errors import ManifestError


def scan_table(
    file: Path | str, root: Path, separator: str | None, targets: Targets, check: ScanOptions, workers: int | None, progress: bool
) -> tuple[Path | str, list[str], pa.Table]:
    """The folder that the paths are relative to, class names and rows.

    Args:
        root: of relative paths; if one path is absolute, all become relative to "/".
        separator: of the classes of an image, in a column of text.
        targets: columns of objects, masks and texts.
    """
    if files := embedded_files(file):
        return _scan_embedded(file, read_embedded(files, check, workers, progress), separator, targets)
    if isinstance(file, str):
        raise ManifestError(f"{file}: no such object; tables in an object store are Parquet files that hold the images")
    table = _read(file, separator, targets)
    paths = [os.fsencode(path) for path in table["path"].to_pylist()]
    masks = [os.fsencode(path or "") for path in table[targets.mask].to_pylist()] if targets.mask else []
    if any(path.startswith(b"/") for path in paths + masks):
        paths, masks = ([path and os.path.join(os.fsencode(root), path).lstrip(b"/") for path in each] for each in (paths, masks))
        root = Path("/")
    headers = list(read_headers(root, ((path, None) for path in paths), len(paths), check, workers, progress))
    columns: dict[str, pa.Array] = {}
    if targets.mask:
        headers = with_masks(root, masks, headers, check, workers, progress)
        columns[TARGET + "mask"] = mask_column(masks)
    return root, *_rows(file, table, paths, headers, columns, separator, targets)


def _scan_embedded(
    file: Path | str, embedded: Embedded, separator: str | None, targets: Targets
) -> tuple[Path | str, list[str], pa.Table]:
    """Of images that lie in the files themselves; what `datasets` notes of the classes names them."""
    if targets.mask:
        raise ManifestError(f"{file}: masks are not read out of Parquet files; leave out targets.mask")
    table, label = embedded.table, embedded.label
    if label and "label" not in table.column_names:
        table = table.rename_columns(["label" if name == label[0] else name for name in table.column_names])
    _check_columns(file, table, targets)
    classes, rows = _rows(file, table, embedded.paths, embedded.headers, embedded.places, separator, targets)
    if label and not targets.boxes and len(classes) <= len(label[1]):
        classes = label[1]
    root = folder_of(file) if isinstance(file, str) else file if file.is_dir() else file.parent
    return root, classes, rows


def _rows(
    file: Path | str,
    table: pa.Table,
    paths: list[bytes],
    headers: list[Header],
    columns: dict[str, pa.Array],
    separator: str | None,
    targets: Targets,
) -> tuple[list[str], pa.Table]:
    """Class names, and a row for each image.

    Args:
        columns: of the manifest, besides those that the table has.
    """
    columns |= read_columns(file, table, {"path", "label", *targets.named.values()})
    if targets.text:
        columns[TARGET + "text"] = table[targets.text].combine_chunks().cast(pa.large_string()).fill_null("")
    if not targets.boxes:
        classes, labels = _labels(file, table, separator)
        return classes, file_rows(paths, labels, headers, columns)
    found, misfits = read_objects(file, table, targets)
    headers = [each._replace(problem=each.problem or misfits.get(row)) for row, each in enumerate(headers)]
    headers, objects = checked(found, headers, targets.box_format, targets.bad_objects)
    classes, objects[BOX_LABELS], labels = numbered(file, objects[BOX_LABELS])
    return classes, file_rows(paths, labels, headers, columns | objects)


def _labels(file: Path | str, table: pa.Table, separator: str | None) -> tuple[list[str], pa.Array]:
    if "label" in table.column_names:
        return read_labels(file, table["label"], separator)
    return [], pa.array([[]] * len(table), pa.list_(pa.int32()))


def _read(file: Path, separator: str | None, targets: Targets) -> pa.Table:
    """A CSV or Parquet file with the columns `path`, those of the targets, and `label` if there are no targets.

    Args:
        separator: of the classes of an image, in a column of text.
    """
    needed = ["path", *(targets.named.values() or ["label"])]
    if not file.is_file():
        raise ManifestError(f"{file}: no such file; give a CSV or Parquet table with the columns {' and '.join(needed)}")
    try:
        if file.suffix == ".parquet":
            table = pq.read_table(file)
        else:
            types = {} if separator is None else {"label": pa.string()}  # even if no row has more than one class
            table = pyarrow.csv.read_csv(file, convert_options=pyarrow.csv.ConvertOptions(column_types=types))
        paths, _ = table["path"].to_pylist(), [table[name] for name in needed]
    except (pa.ArrowException, KeyError, OSError) as error:
        raise ManifestError(f"{file}: not a table with the columns {' and '.join(needed)} ({error})") from None
    if not paths or not all(isinstance(path, (str, bytes)) and path for path in paths):
        raise ManifestError(f"{file}: every row needs a path and a label, and there must be at least one row")
    _check_columns(file, table, targets)
    return table


def _check_columns(file: Path | str, table: pa.Table, targets: Targets) -> None:
    needed = list(targets.named.values()) or ["label"]
    if missing := [name for name in needed if name not in table.column_names]:
        has = ", ".join(table.column_names)
        raise ManifestError(
            f"{file}: not a table with the columns {' and '.join(missing)}; it has {has or 'none besides the images'}"
        )
    for name in filter(None, (targets.mask, targets.text)):
        if not is_text(table[name].type):
            raise ManifestError(f"{file}: the column {name} is of type {table[name].type}; it must be text")
