"""Makes a manifest of the columns of a table of paths, or of rows that hold their images.

`read_rows` chooses the rows of a split, reads the labels and then the images, and puts labels,
objects and further columns beside the headers of these.

`list_left_columns` tells of columns that nobody reads: a note of those whose type a manifest does
not keep, and a doubt of those that hold boxes or keypoints, which do not move with the pixels.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import fields_of, is_list, is_text
from dali_pipes.data.doubts import doubt
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.features import name_numbers
from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.labels.reader import Labels, no_labels, read_labels
from dali_pipes.data.labels.texts import clear_others, read_list, read_text
from dali_pipes.data.objects import BOX_LABELS, TARGET, Targets
from dali_pipes.data.omissions import Omission, add_detail, kind_of
from dali_pipes.data.own_columns import is_kept_type, read_columns
from dali_pipes.data.sources.options import SourceOptions
from dali_pipes.data.sources.reading import finish, note_reading
from dali_pipes.data.sources.rows.files import file_rows
from dali_pipes.data.sources.rows.objects import number_labels, object_columns, read_cells
from dali_pipes.data.sources.split_column import choose_rows, make_images
from dali_pipes.data.sources.targets import add_targets

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


class SourceTable(NamedTuple):
    """A table of images, before these are read.

    Attributes:
        place: what errors call it.
        table: its columns; of rows that hold their images all others.
        names: of columns of class numbers the names of the classes.
        cells: the path in each row; nothing if the rows hold their images.
        has_texts: whether a label is text that may mean a number, as in a CSV.
        turned_by_source: as in `ManifestFacts`.
        label_option: what the user calls `SourceOptions.label_column`.
    """

    place: Path | str
    table: pa.Table
    names: Mapping[str, list[str]]
    cells: Sequence[bytes] = ()
    has_texts: bool = False
    turned_by_source: bool = False
    label_option: str = "label_column"


class FoundImages(NamedTuple):
    """The images of a table.

    Attributes:
        root: the folder of their paths.
        paths, headers: of each image.
        columns: of the manifest: where each image is in its file, or its mask.
        omissions: what is left out beside them.
    """

    root: Path | str
    paths: list[bytes]
    headers: list[Header]
    columns: dict[str, pa.Array]
    omissions: Sequence[Omission] = ()


def read_rows(
    source: SourceTable, options: SourceOptions, read_images: Callable[[], FoundImages]
) -> ImageTable:
    """Reads the labels, objects, columns and images of a table.

    Args:
        read_images: reads the headers of the images. It is called last, since it takes long.

    Raises:
        ManifestError: the labels make no sense, or no row has a label or an image.
        OmissionError: `strict`, and something is left out.
    """
    place, table, targets = source.place, source.table, options.targets
    used = {options.path_name, options.label_name, *targets.named.values()}
    paths = list(map(os.fsdecode, source.cells))
    chosen = choose_rows(place, table, used, options.split, classes=source.names, paths=paths)
    labels = _read_row_labels(source, options, chosen.rows)

    found = read_images()
    columns = found.columns | read_columns(place, table, used)
    notes = [*found.omissions, *list_left_columns(table, used, targets)]
    if targets.text:
        texts = table[targets.text].combine_chunks().cast(pa.large_string())
        columns[TARGET + "text"] = texts.fill_null("")

    classes: list[str] = []
    values, headers = no_labels(len(found.paths)), found.headers
    if targets.boxes:
        headers, objects = object_columns(read_cells(place, table, targets), headers, targets)
        classes, objects[BOX_LABELS], values = number_labels(place, objects[BOX_LABELS])
        columns |= objects
    elif labels is not None:
        classes, values = labels.classes, labels.values
        notes = [*labels.notes, *notes]
        _add_problems(headers, labels.problems)
    if source.cells:
        headers = _add_row_numbers(headers)
    rows = file_rows(found.paths, values, headers, columns)

    # the names of the labels, or of those of the objects
    column = targets.box_labels or options.label_name
    classes, are_named, doubts = name_numbers(table, column, source.names, classes)
    facts = ManifestFacts(
        keypoints=targets.keypoints_named,
        omissions=[*notes, *doubts],
        turned_by_source=source.turned_by_source,
        reading=note_reading(options),
    )
    images, whole = make_images(found.root, classes, rows, facts, chosen)
    return finish(add_targets(images, place, options), options, are_named, whole)


def _read_row_labels(
    source: SourceTable, options: SourceOptions, wanted: NDArray[np.bool_] | None
) -> Labels | None:
    """Returns the labels of the rows; None: none are read, since there are only targets, or since
    the objects have the labels.

    Args:
        wanted: (n,) which rows are used; None: all.
    """
    place, name = source.place, options.label_name
    is_there = name in source.table.column_names
    if not options.with_labels or options.targets.boxes or not is_there:
        return None

    column = source.table[name]
    if source.has_texts and options.label_separator is None:
        cells = column.combine_chunks()
        if wanted is not None:
            # rows that nobody wants must not make names of numbers
            some = cells.filter(pa.array(wanted))
            kind = read_text(place, some, options.task, np.flatnonzero(wanted)).type
            cells = clear_others(cells, kind, options.task)
        column = pa.chunked_array([read_text(place, cells, options.task)])
    # lists in a column of class numbers are no vectors
    width = 0 if name in source.names else len(options.classes or ()) or None
    return read_labels(place, column, options, width)


def _add_problems(headers: list[Header], problems: Mapping[int, str]) -> None:
    """Adds why rows have no label."""
    for row, why in problems.items():
        # of the image's own problem only what is wrong: the advice comes once, at the end
        if problem := headers[row].problem:
            why = f"{kind_of(problem)}, and {why}"
        why = f"{why} (row {row + 1}); give it one, or remove the row"
        headers[row] = headers[row]._replace(problem=why)


def _add_row_numbers(headers: list[Header]) -> list[Header]:
    """Adds the row in the table, from 1, to each problem, before the advice in it."""
    numbered = list(headers)
    for place, header in enumerate(headers):
        row = f"row {place + 1}"
        if header.problem and f"({row})" not in header.problem:
            numbered[place] = header._replace(problem=add_detail(header.problem, row))
    return numbered


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
        inner = [f"{field.name}.{each.name}" for each in fields_of(field.type)]
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
        if quadruple := _find_quadruple(fields_of(field.type)):
            yield _written_otherwise([field.name], quadruple[1])
    if quadruple := _find_quadruple(left):
        yield _written_otherwise(*quadruple)


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
    """The numbers in a text, with brackets or without; None: it holds something else."""
    return read_list(cell.strip()) or read_list(f"[{cell.replace(';', ',')}]")


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
