"""Objects of images, from a source to columns of a manifest.

    tables, shards: object_columns ──────┐
                                         ├─▶ SourceObjects ─▶ check_objects ─▶ columns
    COCO files: coco/annotations.py ─────┘

`check_objects` turns boxes into corners in pixels of the stored image, lists what is wrong with
objects, and returns the columns of the good ones. An object has one fault at most, of its box,
label, area, keypoints or outline, and is dropped whole. Objects in the cells of tables and shards
whose lists do not fit together become the problem of their image.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.arrow_types import is_list, is_text, is_unicode
from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.labels.reader import MAX_CLASSES, distinct_labels, number_names
from dali_pipes.data.objects import TARGET, TYPES, Keypoints, Targets
from dali_pipes.data.omissions import add_detail
from dali_pipes.data.turns import reverse, turn_boxes, turn_keypoints, turn_sizes
from dali_pipes.errors import ManifestError


@dataclass(frozen=True, slots=True)
class SourceObjects:
    """The objects of N images, those of each image one after the other; M in all. Images with a
    problem have none. All but `counts` has a value for each object.

    Attributes:
        counts: (N,) int64, how many each image has.
        boxes: (M, 4), as `Targets.box_format` and `Targets.annotated` say.
        labels: M class numbers or class names.
        areas: (M,) float64; None: those of the boxes.
        crowd: (M,) bool; None: not known.
        keypoints: (M, K, 3) float64 x, y, visibility, as the boxes; None: there are none.
        outlines: M of JSON text; None: there are none.
        faults: what the source finds wrong with an object, by its number below M.
        name: how messages call the object with a number; None: by its place in its image, from 1.
    """

    counts: NDArray[np.int64]
    boxes: NDArray[np.floating[Any]]
    labels: pa.Array
    areas: NDArray[np.float64] | None = None
    crowd: NDArray[np.bool_] | None = None
    keypoints: NDArray[np.float64] | None = None
    outlines: list[str] | None = None
    faults: dict[int, str] = field(default_factory=dict)
    name: Callable[[int], str] | None = None


def refuse_without_objects(source: Path | str, faults: list[str]) -> None:
    """Raises ManifestError if objects were left out; the error has the first of the faults.

    It is called where no object is left, since training would see images without any.
    """
    if faults:
        raise ManifestError(
            f"{source}: none of its objects can be used: {len(faults):,} left out, the first: "
            f"{faults[0]}"
        )


def list_column(counts: NDArray[np.int64], values: Any, width: int = 1) -> pa.Array:
    offsets = pa.array(np.append(0, counts.cumsum()) * width, pa.int64())
    return pa.LargeListArray.from_arrays(
        offsets, values if isinstance(values, pa.Array) else pa.array(values)
    )


def number_labels(
    source: Any, labels: pa.Array, classes: list[str] | None = None
) -> tuple[list[str], pa.Array, pa.Array]:
    """Returns class names, the labels of the objects as class numbers, and the label of each image:
    the classes that occur in it.

    Args:
        source: for errors.
        labels: class numbers from 0 or class names, a list for each image.
        classes: the class names if they are known; None: the names that occur, sorted, or the
            numbers from 0 to the highest.
    """
    values, counts = labels.flatten(), labels.value_lengths().to_numpy()

    # numbers are taken as they are, and names are numbered in sorted order
    if pa.types.is_integer(values.type):
        high = pc.max(values).as_py() if len(values) else -1
        if high >= (MAX_CLASSES if classes is None else len(classes)):
            advice = (
                "number the classes from 0, without large gaps"
                if classes is None
                else f"there are {len(classes)} classes"
            )
            raise ManifestError(f"{source}: labels of objects go up to {high}; {advice}")

        classes = number_names(high + 1) if classes is None else classes
        numbers = values.cast(pa.int64())
    else:
        values = pc.utf8_normalize(values, form="NFC")
        classes = sorted(set(values.to_pylist())) if classes is None else classes
        numbers = pc.index_in(values, value_set=pa.array(classes, values.type)).cast(pa.int64())
        if numbers.null_count:
            unknown = values.filter(numbers.is_null())[0].as_py()
            none = f"the label {unknown!r} of an object is none of the {len(classes)} classes"
            raise ManifestError(f"{source}: {none}; add it to them")

    return (
        classes,
        list_column(counts, numbers),
        distinct_labels(counts, numbers.to_numpy(), len(classes)),
    )


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
    cells = [
        None if header.problem else _fit_values(values, targets)
        for values, header in zip(rows, headers, strict=True)
    ]

    # A source has class names or class numbers, so the kind is known only once all are read.
    labels = [cell["box_labels"] if cell else [] for cell in cells]
    named = any(isinstance(label, str) for image_labels in labels for label in image_labels)
    headers, mixed = (
        list(headers),
        (
            f"its {targets.box_labels} has class numbers, and this shard has class names too; "
            "write one of them in all"
        ),
    )
    for place, cell in enumerate(cells):
        if cell is None:
            problem = headers[place].problem or targets.misfit
            headers[place] = headers[place]._replace(problem=problem)
        elif named and not all(isinstance(label, str) for label in labels[place]):
            headers[place] = headers[place]._replace(problem=mixed)
            cells[place], labels[place] = None, []

    # the objects of all images, one after the other
    values = {
        name: np.concatenate([np.empty((0, width)), *(cell[name] for cell in cells if cell)])
        for name, width in targets.widths.items()
        if name != "box_labels"
    }
    points = targets.keypoints_named
    objects = SourceObjects(
        np.array(list(map(len, labels)), np.int64),
        values["boxes"],
        pa.array(
            [label for image_labels in labels for label in image_labels],
            pa.string() if named else pa.int64(),
        ),
        values["areas"][:, 0] if "areas" in values else None,
        keypoints=values["keypoints"].reshape(-1, len(points.names), 3) if points else None,
    )
    return check_objects(objects, headers, targets, points)


def _fit_values(values: dict[str, Any], targets: Targets) -> dict[str, Any] | None:
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


# larger numbers become infinite in a manifest, whose boxes, areas and keypoints are float32
_LARGEST = np.finfo(np.float32).max
_BOX = "({:g}, {:g}, {:g}, {:g})"
_LIKE_FRACTIONS = "as if {} were in fractions of the image and not in pixels"
BAD_OBJECT = "bad object: "  # how the problem of an image begins that is of its objects
_SHOWN = 3  # faults of one image that its problem names


def as_corners(
    boxes: NDArray[np.floating[Any]], format: str, height: Any, width: Any
) -> NDArray[np.float64]:
    """Returns (M, 4) left, top, right, bottom in pixels.

    The boxes are in one of `BOX_FORMATS`; height and width are those of their images.
    """
    first, second = boxes[:, :2], boxes[:, 2:]
    if format.endswith("cxcywh"):
        first, second = first - second / 2, first + second / 2
    elif format.endswith("xywh"):
        second = first + second

    scale = np.stack([width, height], -1) if format.startswith("relative_") else 1.0
    return np.concatenate([first * scale, second * scale], 1)


def check_objects(
    objects: SourceObjects, headers: list[Header], targets: Targets, keypoints: Keypoints | None
) -> tuple[list[Header], dict[str, pa.Array]]:
    """Returns the headers, and the columns of the objects that are left.

    With bad_objects="problem" the header of an image with a bad object has a problem, and the image
    keeps no object. The column box_labels has class names if the source has them.
    """
    # from here on, all arrays have a row for each object; these are of its image
    image = np.repeat(np.arange(len(headers)), objects.counts)
    stored = [(header.height, header.width, header.orientation) for header in headers]
    sizes, orientations = np.split(np.array(stored, np.int64).reshape(-1, 3)[image], [2], axis=1)
    turns = orientations[:, 0] if targets.annotated == "upright" else np.ones(len(image), np.int64)

    objects, faults = _place_objects(objects, sizes, turns, targets, keypoints)

    # one line for each bad object, at its image
    first = objects.counts.cumsum() - objects.counts
    lines: list[list[str]] = [[] for _ in headers]
    for number in sorted(faults):
        place = image[number]
        name = objects.name(number) if objects.name else f"object {number - first[place] + 1}"
        lines[place].append(f"{add_detail(faults[number], name)}; correct it or remove it")

    keep = np.ones(len(image), bool)
    keep[list(faults)] = False
    # a bad object costs its image, which then keeps no object and no line in `dropped`
    if targets.bad_objects == "problem":
        headers = [
            header._replace(problem=_as_problem(why)) if why else header
            for header, why in zip(headers, lines, strict=True)
        ]
        keep = ~np.array(list(map(bool, lines)), bool)[image]
        lines = [[] for _ in headers]

    counts = np.bincount(image[keep], minlength=len(headers))
    return headers, _columns(objects, keep, counts, ["\n".join(why) for why in lines])


def _as_problem(lines: list[str]) -> str:
    more = [f"and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
    return BAD_OBJECT + "; ".join(lines[:_SHOWN] + more)


def _place_objects(
    objects: SourceObjects,
    sizes: NDArray[np.int64],
    turns: NDArray[np.int64],
    targets: Targets,
    keypoints: Keypoints | None,
) -> tuple[SourceObjects, dict[int, str]]:
    """Returns the objects with boxes, as corners, and keypoints in pixels of their images as
    stored, and what is wrong with them by number.

    Args:
        sizes: (M, 2) heights and widths as stored.
        turns: (M,) the orientations that lead from the stored images to the annotated ones.
    """
    points, relative = objects.keypoints, targets.box_format.startswith("relative_")
    height, width = turn_sizes(sizes, turns).T

    with np.errstate(all="ignore"):  # numbers that are not finite are faults
        corners = as_corners(objects.boxes, targets.box_format, height, width)
        # in float32, as they are stored: a box may become empty or infinite by it
        boxes = turn_boxes(corners, reverse(turns), sizes).astype(np.float32)
        # x and y are scaled, and the visibility is left as it is
        if points is not None and relative:
            points = points * np.stack([width, height, np.ones(len(sizes))], axis=1)[:, None]
        if points is not None and keypoints:
            points = turn_keypoints(points, reverse(turns), sizes, keypoints.flipped)

        placed = replace(objects, boxes=boxes, keypoints=points)
        like_fractions = _are_like_fractions(corners) & (not relative)
        return placed, _find_faults(objects, placed, sizes, like_fractions)


def _are_like_fractions(boxes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns which boxes are within the first pixel and do not fill it.

    All boxes in fractions of the image are. Taken for pixels they would be smaller than a pixel,
    and transforms would drop them without a word.
    """
    sides = boxes[:, 2:] - boxes[:, :2]
    within = ((boxes >= 0) & (boxes <= 1)).all(axis=1)
    return np.asarray(within & (sides > 0).all(axis=1) & (sides < 1).any(axis=1))


def _find_faults(
    given: SourceObjects,
    placed: SourceObjects,
    sizes: NDArray[np.int64],
    like_fractions: NDArray[np.bool_],
) -> dict[int, str]:
    """Returns what is wrong with objects, by number: what the source says, or the first below.

    Args:
        given, placed: as the source has them, which messages show, and in pixels as stored.
    """
    first, last = placed.boxes[:, :2], placed.boxes[:, 2:]
    # which objects, what is wrong with them, and the numbers to show
    kinds = [
        (~np.isfinite(placed.boxes).all(axis=1), f"its box is not finite {_BOX}", given.boxes),
        ((last <= first).any(axis=1), f"its box is empty or inverted {_BOX}", given.boxes),
        (
            ((last <= 0) | (first >= sizes[:, ::-1])).any(axis=1),
            f"its box is outside the image {_BOX}",
            given.boxes,
        ),
        (
            like_fractions,
            f"its box is within the first pixel, {_LIKE_FRACTIONS.format('it')} {_BOX}",
            given.boxes,
        ),
    ]
    if pa.types.is_integer(given.labels.type):  # names have no sign
        labels = given.labels.to_numpy()
        kinds.append((labels < 0, "its label is negative ({:g})", labels[:, None]))
    if given.areas is not None:
        # `not (a >= 0)` is true for NaN too
        is_odd = ~((given.areas >= 0) & (given.areas <= _LARGEST))
        kinds.append((is_odd, "its area is negative or not finite ({:g})", given.areas[:, None]))
    if placed.keypoints is not None:
        kinds += _look_at_keypoints(placed.keypoints, last - first)

    faults = dict(given.faults)
    for is_bad, what, shown in kinds:
        for number in np.flatnonzero(is_bad).tolist():
            faults.setdefault(number, what.format(*shown[number].tolist()))
    return faults


def _look_at_keypoints(
    points: NDArray[np.float64], sides: NDArray[np.float64]
) -> list[tuple[NDArray[np.bool_], str, NDArray[np.float64]]]:
    """Returns what `_find_faults` looks for in keypoints, (M, K, 3); `sides` are of the boxes."""
    places, visibility = points[..., :2], points[..., 2]
    kinds = []
    for is_bad, what in (
        (
            np.asarray(~(np.abs(points) <= _LARGEST).all(axis=2)),
            "a keypoint is not finite (keypoint {:g})",
        ),
        (
            ~np.isin(visibility, (0, 1, 2)),
            "a keypoint has a visibility other than 0, 1 and 2 (keypoint {:g} has {:g})",
        ),
    ):
        at = is_bad.argmax(axis=1)
        shown = np.stack([at + 1, visibility[np.arange(len(points)), at]], axis=1)
        kinds.append((np.asarray(is_bad.any(axis=1)), what, shown))

    # those of fractions lie within the first pixel; the box says that the object is larger
    is_labelled = visibility > 0
    is_far = ((places < 0) | (places > 1)).any(axis=2) & is_labelled
    is_whole = (places == np.floor(places)).all(axis=2) | ~is_labelled
    are_fractions = (
        is_labelled.any(axis=1)
        & ~is_far.any(axis=1)
        & ~is_whole.all(axis=1)
        & (sides > 2).all(axis=1)
    )
    what = "its keypoints are all within the first pixel, " + _LIKE_FRACTIONS.format("they")
    return [*kinds, (are_fractions, what, points[:, 0])]


def _columns(
    objects: SourceObjects,
    keep: NDArray[np.bool_],
    counts: NDArray[np.int64],
    dropped: list[str],
) -> dict[str, pa.Array]:
    boxes = objects.boxes[keep]
    areas = (
        (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        if objects.areas is None
        else objects.areas[keep].astype(np.float32)
    )
    columns = {
        "boxes": list_column(counts, boxes.ravel(), 4),
        "box_labels": list_column(counts, objects.labels.filter(pa.array(keep))),
        "areas": list_column(counts, areas),
    }

    if objects.crowd is not None:
        columns["crowd"] = list_column(counts, objects.crowd[keep])
    if objects.keypoints is not None:
        points = objects.keypoints[keep].astype(np.float32)
        columns["keypoints"] = list_column(counts, points.ravel(), 3 * points.shape[1])

    # One JSON list for each image, joined as text: the outlines are JSON already.
    if objects.outlines is not None:
        ends = np.append(0, counts.cumsum()).tolist()
        outlines = [text for text, good in zip(objects.outlines, keep, strict=True) if good]
        columns["outlines"] = pa.array(
            [f"[{', '.join(outlines[a:b])}]" for a, b in pairwise(ends)], TYPES["outlines"]
        )

    columns["dropped"] = pa.array(dropped, TYPES["dropped"])
    return {TARGET + name: values for name, values in columns.items()}
