"""A CSV or Parquet file that lists images by path and label: `Manifest.from_table`.

`read_table` makes a manifest of it, and of Parquet files that hold the images (hugging_face.py). Of
a table of paths, `_read` reads the columns and `_read_images` the files.
"""

import os
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dali_pipes.data.arrow_types import is_text, plain, with_fields
from dali_pipes.data.features import class_names, features_of
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.objects import MASK, TYPES
from dali_pipes.data.shards.addresses import absolute
from dali_pipes.data.sources.csv_tables import read_csv
from dali_pipes.data.sources.hugging_face import embedded_files, read_embedded
from dali_pipes.data.sources.kinds import kind_of_table
from dali_pipes.data.sources.layouts import local_path
from dali_pipes.data.sources.options import SourceOptions, refuse
from dali_pipes.data.sources.rows.files import check_listed_masks, read_listed
from dali_pipes.data.sources.rows.table_rows import FoundImages, SourceTable, read_rows
from dali_pipes.data.sources.table_columns import check_columns
from dali_pipes.data.table.schema import replace_column
from dali_pipes.errors import ManifestError


def read_table(source: str | Path, options: SourceOptions) -> ImageTable:
    """Reads the headers of the images that a CSV or Parquet file lists by path and label.

    A Parquet file, a folder of them, or a pattern such as data/train-*.parquet may hold the
    images themselves, as Hugging Face's `datasets` writes them: docs/shards.md.

    A label is a class number from 0, a class name, a list of either, a fraction or a list of
    fractions: docs/targets.md. Names are numbered in sorted order. All other columns of numbers
    are kept. A row without a label, or whose file is not there, is one of the `problems`.

    Args:
        source: the table.

    Raises:
        ConfigError: an option would change nothing, since such a table does not take it.
        ManifestError: no such table, its labels make no sense, no row has a label or a file, or
            no object can be used.
        OmissionError: `strict`, and something is left out.
    """
    file = local_path(source)
    options.refuse_untaken(file, kind_of_table(file))
    files = embedded_files(absolute(file), options.path_name)
    of_paths = options.list_given().keys() & {"images", "path_column"}
    if files and of_paths:
        refuse(dict.fromkeys(of_paths, f"{file} holds the images themselves"))

    place = absolute(file)
    if files:
        return read_embedded(place, files, options)
    if isinstance(place, str):
        raise ManifestError(
            f"{place}: no such object; tables in an object store are Parquet files that hold "
            "the images"
        )

    table = _read(place, options)
    cells = _encode_paths(table, options.path_name)
    names = class_names(features_of(table.schema))
    made = SourceTable(place, table, names, cells, has_texts=place.suffix != ".parquet")
    return read_rows(made, options, partial(_read_images, made, options))


def _read_images(source: SourceTable, options: SourceOptions) -> FoundImages:
    """Reads the files that a table names."""
    folder = Path(os.path.abspath(local_path(options.images or Path(source.place).parent)))
    mask = options.targets.mask
    mask_cells = _encode_paths(source.table, mask) if mask else []
    # a manifest has relative paths only, so if one path is absolute, all become relative to "/"
    is_absolute = b"/" in {path[:1] for path in (*source.cells, *mask_cells)}
    root = Path("/") if is_absolute else folder

    paths, headers = read_listed(Path(source.place), folder, root, source.cells, options)
    columns = {}
    if mask:
        masks, headers = check_listed_masks(folder, root, mask_cells, headers, options)
        columns[MASK] = pa.array(masks, TYPES["mask"])
    return FoundImages(root, paths, headers, columns)


def _encode_paths(table: pa.Table, name: str) -> list[bytes]:
    return list(table[name].cast(pa.large_binary()).fill_null(b"").to_pylist())


def _read(file: Path, options: SourceOptions) -> pa.Table:
    """Reads a CSV or Parquet file with its paths, its targets, and its labels if there are no
    targets.
    """
    targets = options.targets
    texts = {
        options.path_name,
        options.label_name,
        *filter(None, (targets.mask, targets.text)),
    }

    if not file.is_file():
        needed = f"{options.path_name} and {options.label_name}"
        instead = f"give a CSV or Parquet table with the columns {needed}"
        raise ManifestError(f"{file}: no such file; {instead}")

    # names of columns with blanks around them are common where tables come out of spreadsheets
    try:
        if file.suffix == ".parquet":
            table = plain(pq.read_table(file))
            about = table.schema.metadata
            table = table.rename_columns([name.strip() for name in table.column_names])
            table = table.replace_schema_metadata(about)
            table = with_fields(table, targets.named.values())
        else:
            table = read_csv(file, options, texts)
    except (pa.ArrowException, OSError) as error:
        raise ManifestError(
            f"{file}: cannot be read as a table ({error}); write it again"
        ) from None

    if not len(table):
        raise ManifestError(f"{file}: has no row below its header; write one for each image")

    check_columns(file, table, options, of_paths=True)
    if file.suffix != ".parquet":
        _refuse_second_header(file, table, options)
    name = options.path_name
    return replace_column(table, name, _cast_paths(file, name, table[name]))


def _refuse_second_header(file: Path, table: pa.Table, options: SourceOptions) -> None:
    """Raises ManifestError for a second header between the rows: its label would turn all labels
    into names.
    """
    if not options.with_labels or options.label_name not in table.column_names:
        return
    paths, labels = table[options.path_name], table[options.label_name]
    marked = f"\ufeff{options.path_name}"  # with the byte-order mark of a file that was appended
    row = max(pc.index(paths, name).as_py() for name in (options.path_name, marked))
    if row >= 0 and labels[row].as_py().strip() == options.label_name:
        raise ManifestError(
            f"{file}: row {row + 1} is a header again, as of files that were joined; remove it"
        )


def _cast_paths(file: Path, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    # files may be named by numbers; a column in which no row has a path is of Arrow's type null
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    what = f"the column {name} is of type {kind}"
    raise ManifestError(f"{file}: {what}; it must be text, the paths of the images")
