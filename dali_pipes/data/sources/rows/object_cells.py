"""Objects in the cells of tables and shards: lists of boxes, labels, areas and keypoints of each
image. `read_cells` takes them out of a table, and `object_columns` checks them and returns the
columns of a manifest. What does not fit becomes the problem of its image.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_list, is_text, is_unicode
from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.objects import Targets
from dali_pipes.data.sources.rows.checked_objects import check_objects
from dali_pipes.data.sources.rows.source_objects import SourceObjects
from dali_pipes.errors import ManifestError


def read_cells(file: Path | str, table: pa.Table, targets: Targets) -> Iterator[dict[str, Any]]:
    """Yields the objects of each row, by the field of `Targets`, from columns of lists."""
    # the type of a column is checked once, since all its cells have it
    names = {field_name: targets.named[field_name] for field_name in targets.widths}
    for field_name, name in names.items():
        kind, labels = table[name].type, field_name == "box_labels"
        while is_list(kind):
            kind = kind.value_type
        good = is_text(kind) if labels else pa.types.is_floating(kind) or pa.types.is_null(kind)
        if not is_list(table[name].type) or not (good or pa.types.is_integer(kind)):
            wanted = (
                f"lists of {'class numbers or names' if labels else 'numbers'}, as Parquet "
                "holds them"
            )
            raise ManifestError(
                f"{file}: the column {name} is of type {table[name].type}; it must have {wanted}"
            )

    # row by row: all objects of a large table at once would fill the memory as Python lists
    for cells in zip(*(table[name] for name in names.values()), strict=True):
        yield {
            field_name: cell.as_py() or [] for field_name, cell in zip(names, cells, strict=True)
        }


def object_columns(
    rows: Iterable[dict[str, Any]], headers: list[Header], targets: Targets
) -> tuple[list[Header], dict[str, pa.Array]]:
    """Returns what `check_objects` returns, for values that are given for each image by the field
    of `Targets`.

    What does not fit becomes the problem of its image.
    """
    objects = [
        None if header.problem else _objects(values, targets)
        for values, header in zip(rows, headers, strict=True)
    ]

    # A source has class names or class numbers, so the kind is known only once all are read.
    named = any(
        isinstance(label, str)
        for image_objects in objects
        if image_objects
        for label in image_objects["box_labels"]
    )
    problems = [
        header.problem or _misfit(image_objects, targets, named)
        for header, image_objects in zip(headers, objects, strict=True)
    ]
    objects = [
        None if problem else image_objects
        for problem, image_objects in zip(problems, objects, strict=True)
    ]
    headers = [
        header._replace(problem=problem) for header, problem in zip(headers, problems, strict=True)
    ]

    # The objects of all images, one after the other.
    good = [image_objects for image_objects in objects if image_objects]
    counts = np.array(
        [len(image_objects["box_labels"]) if image_objects else 0 for image_objects in objects],
        np.int64,
    )
    labels = pa.array(
        [label for image_objects in good for label in image_objects["box_labels"]],
        pa.string() if named else pa.int64(),
    )
    values = {
        name: np.concatenate(
            [np.empty((0, width)), *(image_objects[name] for image_objects in good)]
        )
        for name, width in targets.widths.items()
        if name != "box_labels"
    }

    # without areas those of the boxes count
    areas = values["areas"][:, 0] if "areas" in values else None
    source = SourceObjects(
        counts, values["boxes"], labels, areas=areas, keypoints=values.get("keypoints")
    )
    points = targets.keypoints_named
    source = replace(source, annotated=targets.annotated, flipped=points.flipped if points else [])
    return check_objects(source, headers, targets.box_format or "xyxy", targets.bad_objects)


def _objects(values: dict[str, Any], targets: Targets) -> dict[str, Any] | None:
    """Returns boxes, labels, areas and keypoints of an image, equally many of each; None: the
    values do not fit.
    """
    labels = values.get("box_labels")
    if not isinstance(labels, list) or not all(map(_is_label, labels)):
        return None
    columns = {
        name: _numbers(values.get(name), width)
        for name, width in targets.widths.items()
        if name != "box_labels"
    }

    if any(numbers is None or len(numbers) != len(labels) for numbers in columns.values()):
        return None
    return columns | {"box_labels": labels}


def _is_label(value: Any) -> bool:
    return (type(value) is int and -(2**63) <= value < 2**63) or (
        isinstance(value, str) and is_unicode(value)
    )


def _numbers(value: Any, width: int) -> NDArray[np.float64] | None:
    """Returns (k, width) numbers, from a flat list or from k lists; None: they do not fit."""
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    whole = (
        array.ndim > 0 and array.size % width == 0 and (array.ndim == 1 or array[0].size == width)
    )
    return array.reshape(-1, width) if whole else None


def _misfit(objects: dict[str, Any] | None, targets: Targets, named: bool) -> str | None:
    """Returns what is wrong with the objects of an image; None: nothing. `named`: some labels of
    the source are class names.
    """
    if objects is None:
        return targets.misfit
    if named and not all(isinstance(label, str) for label in objects["box_labels"]):
        return (
            f"its {targets.box_labels} has class numbers, and this shard has class names too; "
            "write one of them in all"
        )
    return None
