"""Makes rows of a manifest from the columns of a table of paths, or of Parquet files that hold the
images.

`check_columns` refuses a table that lacks a column, `read_row_labels` reads the labels, and
`build_rows` puts labels, objects and further columns beside the headers of the images.

`list_left_columns` tells of columns that nobody reads: a note of those whose type a manifest does
not keep, and a doubt of those that hold boxes or keypoints, which do not move with the pixels.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.arrow_types import fields_of, is_list, is_text
from dali_pipes.data.doubts import doubt
from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.labels.reader import Labels, no_labels, read_labels
from dali_pipes.data.objects import BOX_LABELS, TARGET, Targets
from dali_pipes.data.omissions import Omission
from dali_pipes.data.own_columns import is_kept_type, read_columns
from dali_pipes.data.sources.options import SourceOptions
from dali_pipes.data.sources.rows.files import file_rows
from dali_pipes.data.sources.rows.objects import number_labels, object_columns, read_cells
from dali_pipes.data.sources.table_columns import refuse_missing
from dali_pipes.errors import ManifestError

# the names that others give boxes, in the order of preference, in lower case and without "_"
_BOXES = (
    *("bbox", "boxes", "bboxes", "box", "boundingbox", "boundingboxes", "gtboxes"),
    *("xyxy", "xywh"),
)
_BOX_LABELS = ("category", "label", "labels", "categories", "box_labels", "class_labels", "classes")
_POINTS = ("keypoints", "landmarks")
# four columns of which each has one number of a box, and how boxes of them are written
_SIDES = {
    ("xmin", "ymin", "xmax", "ymax"): "xyxy",
    ("x1", "y1", "x2", "y2"): "xyxy",
    ("left", "top", "right", "bottom"): "xyxy",
    ("x", "y", "w", "h"): "xywh",
    ("x1", "y1", "width", "height"): "xywh",
}
_PREFIX = "bbox"
_LOOKED = 100  # cells, whose form is that of the column
_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)"
_NUMBERS = re.compile(rf"[\[(]?\s*{_NUMBER}(?:[\s,;]+{_NUMBER})+\s*[\])]?")


def list_left_columns(table: pa.Table, used: Collection[str], targets: Targets) -> list[Omission]:
    """What is told of the columns that nobody reads."""
    heads = {name.partition(".")[0] for name in used}
    left = [field for field in table.schema if field.name not in used and field.name not in heads]
    notes = [] if targets.boxes else list(_list_objects(table, left))
    names = [field.name for field in left if not is_kept_type(field.type)]
    if names:
        notes.append(doubt("columns of types that are not kept", names, len(names), "note"))
    return notes


def _list_objects(table: pa.Table, left: list[pa.Field]) -> Iterator[Omission]:
    """The columns that hold boxes or keypoints, alone or in fields, or a number of boxes each."""
    lists = [name for name in table.column_names if is_list(table.schema.field(name).type)]
    for field in left:
        # in a field of objects, or in a column of its own beside that of their labels
        inner = [f"{field.name}.{name}" for name in fields_of(field.type)]
        boxes = _first_called(_BOXES, inner or [field.name])
        is_kept = is_kept_type(field.type)
        if boxes is not None and is_kept and not _holds_numbers(table[field.name], 4):
            boxes = None
        if boxes is not None and is_text(field.type):
            yield _written_otherwise([boxes], "xyxy")
            boxes = None
        if boxes is not None:
            labels = _first_called(_BOX_LABELS, inner or lists) or "…"
            yield doubt(
                f"a column of boxes, which are not read; targets=Targets(boxes='{boxes}', "
                f"box_labels='{labels}', box_format='xywh') reads them, if they are written so",
                [field.name],
                1,
            )
        if _first_called(_POINTS, [field.name]) and _holds_numbers(table[field.name], 2):
            yield doubt(
                "a column of keypoints, which are not read, and do not move with the pixels; "
                "targets=Targets(boxes='…', box_labels='…', "
                f"keypoints='{field.name}', keypoint_names=[…]) reads them beside boxes; or leave "
                "the column out",
                [field.name],
                1,
            )
        if quadruple := _find_quadruple(_fields_in(field.type)):
            yield _written_otherwise([field.name], quadruple[1])
    if quadruple := _find_quadruple(left):
        yield _written_otherwise(*quadruple)


def _fields_in(kind: pa.DataType) -> list[pa.Field]:
    """The fields of a struct, or of a list of structs; none of another type."""
    inner = kind.value_type if is_list(kind) else kind
    return list(inner) if pa.types.is_struct(inner) else []


def _written_otherwise(names: list[str], written: str) -> Omission:
    of = "a column of boxes" if len(names) == 1 else "columns of boxes"
    return doubt(
        f"{of}, which are not read, and do not move with the pixels; write a Parquet table with "
        "one row an image and lists of all its boxes, and give targets=Targets(boxes='…', "
        f"box_labels='…', box_format='{written}'), if they are written so; or leave them out",
        names,
        len(names),
    )


def _find_quadruple(left: list[pa.Field]) -> tuple[list[str], str] | None:
    """Four columns that have a box together, and how it is written; None: there are none."""
    numbers = {
        _plain(field.name).removeprefix(_PREFIX): field.name
        for field in left
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    }
    prefixed = {_plain(field.name): field.name for field in left}
    of_box = [f"{_PREFIX}{name}" for name in ("x", "y", "width", "height")]
    if all(name in prefixed for name in of_box):  # without the prefix they may be the image's
        return [prefixed[name] for name in of_box], "xywh"
    for names, written in _SIDES.items():
        if all(name in numbers for name in names):
            return [numbers[name] for name in names], written
    return None


def _holds_numbers(column: pa.ChunkedArray, count: int) -> bool:
    """Whether the cells are lists of so many numbers or a multiple, also lists of such lists, or
    text that is such a list.
    """
    cells = pc.drop_null(column).slice(0, _LOOKED).to_pylist()
    if is_text(column.type):
        cells = [_read_numbers(cell) for cell in cells]
    elif not is_list(column.type):
        return False
    counts = [_count_numbers(cell) for cell in cells]
    return any(counts) and all(number is not None and number % count == 0 for number in counts)


def _read_numbers(cell: str) -> object:
    """The numbers in a text; None: it holds something else."""
    if not cell.strip():
        return []
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        numbers = re.findall(_NUMBER, cell) if _NUMBERS.fullmatch(cell.strip()) else []
        return list(map(float, numbers)) or None


def _count_numbers(cell: object) -> int | None:
    """How many numbers are in a list and in its lists; None: it is something else."""
    if not isinstance(cell, list):
        return None
    counts = [1 if isinstance(item, (int, float)) else _count_numbers(item) for item in cell]
    return None if None in counts else sum(filter(None, counts))


def _first_called(names: Sequence[str], fields: Sequence[str]) -> str | None:
    """The field that has the first of these names; None: there is none."""
    called = {_plain(field.rpartition(".")[2]): field for field in fields}
    return next((called[key] for name in names if (key := _plain(name)) in called), None)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def read_row_labels(
    file: Path | str,
    table: pa.Table,
    options: SourceOptions,
    are_numbers: bool = False,
) -> Labels | None:
    """Returns the labels of the rows; None: none are read, since there are only targets, or since
    the objects have the labels.

    Args:
        are_numbers: whether lists are known to be of class numbers.
    """
    if (
        not options.with_labels
        or options.targets.boxes
        or options.label_column not in table.column_names
    ):
        return None
    width = 0 if are_numbers else len(options.classes or ()) or None
    return read_labels(file, table[options.label_column], options, width)


def build_rows(
    file: Path | str,
    table: pa.Table,
    paths: list[bytes],
    headers: list[Header],
    columns: dict[str, pa.Array],
    options: SourceOptions,
    labels: Labels | None,
) -> tuple[list[str], pa.Table, list[Omission]]:
    """Returns class names, a row for each image, and notes of how the table is read.

    `columns` are the manifest's columns besides those that the table has.
    """
    targets = options.targets
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
    options: SourceOptions,
    more: dict[str, str] | None = None,
) -> None:
    """Refuses a table that lacks a column.

    Args:
        more: further columns that are needed, with the option that names each.
    """
    targets = options.targets
    needed = (more or {}) | {name: f"targets.{field}" for field, name in targets.named.items()}

    # Targets need no label; a label column that the user names is needed, unless objects have
    # labels.
    is_labelled = not targets.named or (options.label_column != "label" and not targets.boxes)
    if is_labelled and options.with_labels:
        needed[options.label_column] = "label_column"
    refuse_missing(file, table.column_names, needed)

    for name in filter(None, (targets.mask, targets.text)):
        if not is_text(table[name].type):
            raise ManifestError(
                f"{file}: the column {name} is of type {table[name].type}; it must be text"
            )
