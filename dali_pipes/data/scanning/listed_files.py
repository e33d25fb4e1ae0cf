"""Images that a table lists: a CSV or Parquet file with the columns `path` and `label`."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from dali_pipes.data.labels import read_columns, read_labels
from dali_pipes.data.scanning.files import file_rows, read_headers
from dali_pipes.data.scanning.headers import ScanOptions
from dali_pipes.errors import ManifestError


def scan_table(
    file: Path, root: Path, separator: str | None, check: ScanOptions, workers: int | None, progress: bool
) -> tuple[Path, list[str], pa.Table]:
    """The folder that the paths are relative to, class names and rows.

    Args:
        root: of relative paths; if one path is absolute, all become relative to "/".
        separator: of the classes of an image, in a column of text.
    """
    classes, paths, labels, columns = _list(file, separator)
    if any(path.startswith(b"/") for path in paths):
        paths = [os.path.join(os.fsencode(root), path).lstrip(b"/") for path in paths]
        root = Path("/")
    headers = list(read_headers(root, ((path, None) for path in paths), len(paths), check, workers, progress))
    return root, classes, file_rows(paths, labels, headers, columns)


def _list(file: Path, separator: str | None = None) -> tuple[list[str], list[bytes], pa.Array, dict[str, pa.Array]]:
    """Class names, paths and labels out of the columns `path` and `label` of a CSV or Parquet file, and its columns of numbers.

    Args:
        separator: of the classes of an image, in a column of text.
    """
    if not file.is_file():
        raise ManifestError(f"{file}: no such file; give a CSV or Parquet table with the columns path and label")
    if file.suffix == ".parquet":
        refuse_embedded_images(file)
    try:
        if file.suffix == ".parquet":
            table = pq.read_table(file)
        else:
            types = {} if separator is None else {"label": pa.string()}  # even if no row has more than one class
            table = pyarrow.csv.read_csv(file, convert_options=pyarrow.csv.ConvertOptions(column_types=types))
        paths, labels = table["path"].to_pylist(), table["label"]
    except (pa.ArrowException, KeyError, OSError) as error:
        raise ManifestError(f"{file}: not a table with the columns path and label ({error})") from None
    if not paths or not all(isinstance(path, (str, bytes)) and path for path in paths):
        raise ManifestError(f"{file}: every row needs a path and a label, and there must be at least one row")
    classes, numbers = read_labels(file, labels, separator)
    return classes, [os.fsencode(path) for path in paths], numbers, read_columns(file, table)


def refuse_embedded_images(file: Path) -> None:
    """Raises for Hugging Face's image column: encoded images in compressed pages, which cannot be read one by one."""
    try:
        types = {field.name: field.type for field in pq.read_schema(file)}
    except (pa.ArrowException, OSError):
        return
    for name, kind in types.items():
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 and "path" not in types:
            raise ManifestError(
                f"{file}: holds the images themselves, in its column {name}; Parquet's pages cannot be read image by image, so "
                "write them as tar shards first (docs/shards.md has the lines)"
            )
