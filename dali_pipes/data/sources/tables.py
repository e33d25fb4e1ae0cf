"""A CSV or Parquet file that lists images by path and label: `Manifest.from_table`.

`read_table` makes the images of a manifest from it, and from Parquet files that hold the images
(hugging_face.py). For a table of paths, `_read` reads the rows and `read_listed` the files.
"""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_text, plain, with_fields
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.features import class_names, features_of, name_numbers
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.labels.texts import clear_others, read_text
from dali_pipes.data.objects import MASK, TYPES
from dali_pipes.data.omissions import Omission
from dali_pipes.data.shards.addresses import absolute
from dali_pipes.data.sources.beside import count_beside_parquet
from dali_pipes.data.sources.csv_tables import read_csv
from dali_pipes.data.sources.hugging_face import embedded_files, scan_embedded
from dali_pipes.data.sources.kinds import kind_of_table
from dali_pipes.data.sources.layouts import local_path
from dali_pipes.data.sources.options import SourceOptions, refuse
from dali_pipes.data.sources.reading import finish, note_reading
from dali_pipes.data.sources.rows.files import check_listed_masks, read_listed
from dali_pipes.data.sources.rows.table_rows import build_rows, check_columns, read_row_labels
from dali_pipes.data.sources.split_column import Chosen, choose_rows, make_images
from dali_pipes.data.sources.targets import add_targets
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
    files = embedded_files(absolute(file), options.path_column)
    of_paths = options.list_given().keys() & {"images", "path_column"}
    if files and of_paths:
        refuse(dict.fromkeys(of_paths, f"{file} holds the images themselves"))

    folder = Path(os.path.abspath(local_path(options.images or Path(file).parent)))
    place, names, table, notes, are_named, chosen = scan_table(
        absolute(file), folder, options, files
    )

    facts = ManifestFacts(
        keypoints=options.targets.keypoints_named,
        omissions=[*count_beside_parquet(absolute(file), place, table["path"]), *notes],
        reading=note_reading(options),
    )
    images, whole = make_images(place, names, table, facts, chosen)
    images = add_targets(images, file, options)

    return finish(images, options, are_named, whole)


def scan_table(
    file: Path | str, root: Path, options: SourceOptions, files: list[str]
) -> tuple[Path | str, list[str], pa.Table, list[Omission], bool, Chosen]:
    """Returns the folder that the paths are relative to, class names, rows, notes, whether the
    source names the classes, and which rows are wanted.

    Args:
        root: the folder of relative paths; if one path is absolute, all become relative to "/".
        files: the Parquet files that hold the images; none: the table lists them.
    """
    if files:
        return scan_embedded(file, files, options)
    if isinstance(file, str):
        raise ManifestError(
            f"{file}: no such object; tables in an object store are Parquet files that hold "
            "the images"
        )

    table, targets, folder = _read(file, options), options.targets, root
    used = {options.path_column, options.label_column, *targets.named.values()}
    cells = table[options.path_column].cast(pa.large_binary()).fill_null(b"").to_pylist()
    names = class_names(features_of(table.schema))
    chosen = choose_rows(
        file, table, used, options.split, classes=names, paths=list(map(os.fsdecode, cells))
    )
    # labels before the images, which take longer to read
    if _has_label_texts(file, table, options):
        table = _read_label_texts(file, table, options, chosen.rows)
    labels = read_row_labels(file, table, options, options.label_column in names)
    masks = table[targets.mask].to_pylist() if targets.mask else []
    mask_cells = [os.fsencode(path or "") for path in masks]
    if b"/" in {path[:1] for path in (*cells, *mask_cells)}:
        root = Path("/")  # a manifest has relative paths only

    paths, headers = read_listed(file, folder, root, cells, options)
    columns = {}
    if targets.mask:
        masks, headers = check_listed_masks(folder, root, mask_cells, headers, options)
        columns[MASK] = pa.array(masks, TYPES["mask"])
    classes, rows, notes = build_rows(file, table, paths, headers, columns, options, labels)
    column = targets.box_labels or options.label_column
    classes, are_named, doubts = name_numbers(table, column, names, classes)
    return root, classes, _with_row_numbers(rows), [*notes, *doubts], are_named, chosen


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


def _read(file: Path, options: SourceOptions) -> pa.Table:
    """Reads a CSV or Parquet file with its paths, its targets, and its labels if there are no
    targets.
    """
    targets = options.targets
    texts = {
        options.path_column,
        options.label_column,
        *filter(None, (targets.mask, targets.text)),
    }

    if not file.is_file():
        needed = f"{options.path_column} and {options.label_column}"
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

    check_columns(file, table, options, {options.path_column: "path_column"})
    for name in {options.path_column} & set(table.column_names):
        table = replace_column(table, name, _cast_paths(file, name, table[name]))

    if _has_label_texts(file, table, options):
        labels = table[options.label_column].combine_chunks()
        _refuse_second_header(file, table[options.path_column], labels, options)
    return table


def _has_label_texts(file: Path, table: pa.Table, options: SourceOptions) -> bool:
    """Whether labels are text that may mean numbers, as in a CSV; in Parquet they have a type."""
    is_typed = file.suffix == ".parquet"
    return options.with_labels and not is_typed and options.label_column in table.column_names


def _read_label_texts(
    file: Path, table: pa.Table, options: SourceOptions, rows: NDArray[np.bool_] | None
) -> pa.Table:
    """Reads the labels as the type that those of the wanted rows have.

    Args:
        rows: (n,) which rows are wanted; None: all.
    """
    if options.label_separator is not None:
        return table
    labels = table[options.label_column].combine_chunks()
    if rows is not None:
        # rows that nobody wants must not make names of numbers
        wanted = labels.filter(pa.array(rows))
        kind = read_text(file, wanted, options.task, np.flatnonzero(rows)).type
        labels = clear_others(labels, kind, options.task)
    return replace_column(table, options.label_column, read_text(file, labels, options.task))


def _refuse_second_header(
    file: Path, paths: pa.ChunkedArray, labels: pa.Array, options: SourceOptions
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
    if is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    # files may be named by numbers; a column in which no row has a path is of Arrow's type null
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    what = f"the column {name} is of type {kind}"
    raise ManifestError(f"{file}: {what}; it must be text, the paths of the images")
