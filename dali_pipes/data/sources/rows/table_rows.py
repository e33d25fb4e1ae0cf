"""Makes rows of a manifest from the columns of a table of paths, or of Parquet files that hold the
images.

`check_columns` refuses a table that lacks a column, `read_row_labels` reads the labels, and
`build_rows` puts labels, objects and further columns beside the headers of the images.
"""

from pathlib import Path

import pyarrow as pa

from dali_pipes.data.arrow_types import is_text
from dali_pipes.data.image_files.headers import Header, ScanOptions
from dali_pipes.data.labels.reader import Labels, read_labels
from dali_pipes.data.labels.stored import no_labels
from dali_pipes.data.objects import BOX_LABELS, TARGET, Targets
from dali_pipes.data.omissions import Omission
from dali_pipes.data.own_columns import read_columns
from dali_pipes.data.sources.rows.files import file_rows
from dali_pipes.data.sources.rows.left_columns import list_left_columns
from dali_pipes.data.sources.rows.object_cells import object_columns, read_cells
from dali_pipes.data.sources.rows.object_labels import number_labels
from dali_pipes.data.sources.table_columns import refuse_missing
from dali_pipes.data.table_options import TableOptions
from dali_pipes.errors import ManifestError


def read_row_labels(
    file: Path | str,
    table: pa.Table,
    options: TableOptions,
    check: ScanOptions,
    are_numbers: bool = False,
) -> Labels | None:
    """Returns the labels of the rows; None: none are read, since there are only targets, or since
    the objects have the labels.

    Args:
        are_numbers: whether lists are known to be of class numbers.
    """
    if (
        not check.with_labels
        or check.targets.boxes
        or options.label_column not in table.column_names
    ):
        return None
    width = 0 if are_numbers else len(check.classes or ()) or None
    return read_labels(file, table[options.label_column], options, width)


def build_rows(
    file: Path | str,
    table: pa.Table,
    paths: list[bytes],
    headers: list[Header],
    columns: dict[str, pa.Array],
    options: TableOptions,
    labels: Labels | None,
    targets: Targets,
) -> tuple[list[str], pa.Table, list[Omission]]:
    """Returns class names, a row for each image, and notes of how the table is read.

    `columns` are the manifest's columns besides those that the table has.
    """
    used = {options.path_column, options.label_column, *targets.named.values()}
    columns |= read_columns(file, table, used)
    notes = list_left_columns(table, used, targets)

    if targets.text:
        columns[TARGET + "text"] = (
            table[targets.text].combine_chunks().cast(pa.large_string()).fill_null("")
        )

    if targets.boxes:
        headers, objects = object_columns(read_cells(file, table, targets), headers, targets)
        classes, objects[BOX_LABELS], values = number_labels(file, objects[BOX_LABELS])
        return classes, file_rows(paths, values, headers, columns | objects), notes

    if labels is None:
        return [], file_rows(paths, no_labels(len(paths)), headers, columns), notes

    for row, why in labels.problems.items():
        # of the image's own problem only what is wrong: the advice comes once, at the end
        if problem := headers[row].problem:
            why = f"{problem.partition(';')[0]}, and {why}"
        why = f"{why} (row {row + 1}); give it one, or remove the row"
        headers[row] = headers[row]._replace(problem=why)
    rows = file_rows(paths, labels.values, headers, columns)
    return labels.classes, rows, [*labels.notes, *notes]


def check_columns(
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
