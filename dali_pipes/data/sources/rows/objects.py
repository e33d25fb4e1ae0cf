"""Objects of images, from a source to columns of a manifest.

    tables, shards: read_cells ──────┐
                                     ├─▶ SourceObjects ─▶ check_objects ─▶ columns
    COCO files: coco/annotations.py ─┘

`check_objects` turns boxes into corners in pixels of the stored image, lists what is wrong with
objects, and returns the columns of the good ones. A box that is empty or outside its image costs
the object; an area or keypoints that make no sense cost only themselves. Objects in the cells of
tables and shards whose lists do not fit together become the problem of their image.
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
from dali_pipes.data.objects import TARGET, TYPES, Targets
from dali_pipes.data.turns import reverse, turn_boxes, turn_keypoints, turn_sizes
from dali_pipes.errors import ManifestError


@dataclass(frozen=True, slots=True)
class SourceObjects:
    """The objects of N images, those of each image one after the other; M in all.

    Attributes:
        counts: (N,) int64, how many each image has.
        boxes: (M, 4) float64.
        labels: M class numbers or class names.
        name: how messages call the object with a number below M; None: by its place in its image,
            from 1.
        faults: what is wrong with an object apart from its box, by its number.
        areas: (M,) float64; None: those of the boxes.
        crowd: (M,) bool; None: not known.
        keypoints: (M, 3 K) float64; None: there are none.
        outlines: (M,) JSON text; None: there are none.
        without: what is wrong with parts of an object, which is kept without them.
        annotated: as in `Targets`.
        flipped: as in `Keypoints`; needed if the keypoints are of upright pictures.
    """

    counts: NDArray[np.int64]
    boxes: NDArray[np.float64]
    labels: pa.Array
    name: Callable[[int], str] | None = None
    faults: dict[int, str] = field(default_factory=dict)
    areas: NDArray[np.float64] | None = None
    crowd: NDArray[np.bool_] | None = None
    keypoints: NDArray[np.float64] | None = None
    outlines: list[str] | None = None
    without: dict[int, list[str]] = field(default_factory=dict)
    annotated: str | None = None
    flipped: list[int] = field(default_factory=list)


def refuse_without_objects(source: Path | str, lost: list[str]) -> None:
    """Raises ManifestError if objects were left out; the error has the first reason in `lost`.

    It is called where no object is left, since training would see images without any.
    """
    if lost:
        raise ManifestError(
            f"{source}: none of its objects can be used: {len(lost):,} left out, the first: "
            f"{lost[0]}"
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
    return check_objects(source, headers, targets.box_format, targets.bad_objects)


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


# larger numbers become infinite in a manifest, whose boxes, areas and keypoints are float32
_LARGEST = np.finfo(np.float32).max
_BOX = "({:g}, {:g}, {:g}, {:g})"


def are_like_fractions(boxes: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns which boxes are within the first pixel and do not fill it.

    All boxes in fractions of the image are. Taken for pixels they would be smaller than a pixel,
    and transforms would drop them without a word.
    """
    with np.errstate(all="ignore"):  # some boxes are not finite
        sides = boxes[:, 2:] - boxes[:, :2]
        wrong = (boxes < 0) | (boxes > 1) | np.isnan(boxes)
        return np.asarray(~wrong.any(axis=1) & (sides > 0).all(axis=1) & (sides < 1).any(axis=1))


def find_faults(
    objects: SourceObjects,
    boxes: NDArray[np.float32],
    height: Any,
    width: Any,
    usable: NDArray[np.bool_],
    fractions: NDArray[np.bool_],
) -> dict[int, str]:
    """Returns what is wrong with the boxes and labels of objects of usable images, by number.

    If an object has several faults, the last one in the list below is named.
    """
    # class names have no sign to check
    left, top, right, bottom = boxes.T
    none, numbers = np.zeros((len(boxes), 1)), pa.types.is_integer(objects.labels.type)
    labels = objects.labels.to_numpy(zero_copy_only=False)[:, None] if numbers else none

    # (which objects, the numbers to show) by the message; later ones replace earlier ones
    kinds = {
        "its label is negative ({:g})": ((labels < 0)[:, 0], labels),
        (
            f"its box is within the first pixel {_BOX}, as if it were in fractions of the "
            "image and not in pixels"
        ): (
            fractions,
            objects.boxes,
        ),
        f"its box is outside the image {_BOX}": (
            (right <= 0) | (bottom <= 0) | (left >= width) | (top >= height),
            objects.boxes,
        ),
        f"its box is empty or inverted {_BOX}": ((right <= left) | (bottom <= top), objects.boxes),
        f"its box is not finite {_BOX}": (~np.isfinite(boxes).all(1), objects.boxes),
    }

    return {
        number: why.format(*shown[number].tolist())
        for why, (wrong, shown) in kinds.items()
        for number in np.flatnonzero(wrong & usable).tolist()
    }


def keep_good_parts(objects: SourceObjects, boxes: NDArray[np.float32]) -> SourceObjects:
    """Returns the objects without areas and keypoints that make no sense; `without` lists these
    too.

    An object loses only the part.
    """
    without = {number: list(why) for number, why in objects.without.items()}

    areas = objects.areas
    if areas is not None:
        # `not (a >= 0)` is true for NaN too
        wrong = np.flatnonzero(~((areas >= 0) & (areas <= _LARGEST)))
        for number in wrong.tolist():
            why = (
                "its area is taken from its box: the one given is negative or not finite "
                f"({areas[number]:g})"
            )
            without.setdefault(number, []).append(why)
        if wrong.size:
            areas = areas.copy()
            areas[wrong] = areas_of(boxes[wrong])

    keypoints = objects.keypoints
    if keypoints is not None:
        faults = _find_point_faults(
            keypoints.reshape(len(boxes), keypoints.shape[1] // 3, 3), boxes
        )
        for number, why in faults.items():
            without.setdefault(number, []).append(f"its keypoints are left out: {why}")
        if faults:
            keypoints = keypoints.copy()
            keypoints[list(faults)] = 0
    return replace(objects, areas=areas, keypoints=keypoints, without=without)


def _find_point_faults(points: NDArray[np.float64], boxes: NDArray[np.float32]) -> dict[int, str]:
    """Returns what is wrong with the keypoints of objects, by the number of the object.

    Args:
        points: (M, K, 3) x, y, visibility.
    """
    faults: dict[int, str] = {}
    places, visibility = points[..., :2], points[..., 2]

    # those of fractions lie within the first pixel; the box says that the object is larger
    is_labelled = visibility > 0
    with np.errstate(all="ignore"):  # some numbers are not finite
        is_far = ((places < 0) | (places > 1)).any(axis=2) & is_labelled
        is_whole = (places == np.floor(places)).all(axis=2) | ~is_labelled
        is_large = (boxes[:, 2:] - boxes[:, :2] > 2).all(axis=1)
    are_fractions = is_labelled.any(axis=1) & ~is_far.any(axis=1) & ~is_whole.all(axis=1) & is_large
    for number in np.flatnonzero(are_fractions).tolist():
        faults[number] = (
            "all of them are within the first pixel, as if they were in fractions of the image and "
            "not in pixels"
        )

    is_strange = ~np.isin(visibility, (0, 1, 2))
    for number in np.flatnonzero(is_strange.any(axis=1)).tolist():
        point = int(is_strange[number].argmax())
        faults[number] = (
            "a keypoint has a visibility other than 0, 1 and 2 "
            f"(keypoint {point + 1} has {visibility[number, point]:g})"
        )

    is_infinite = np.asarray(~(np.abs(points) <= _LARGEST).all(axis=2))
    for number in np.flatnonzero(is_infinite.any(axis=1)).tolist():
        point = int(is_infinite[number].argmax())
        faults[number] = f"a keypoint is not finite (keypoint {point + 1})"
    return faults


def areas_of(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):  # of boxes that are refused
        return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


_SHOWN = 3  # faults of one image that its problem names


def as_corners(
    boxes: NDArray[np.float64], format: str, height: Any, width: Any
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
    objects: SourceObjects, headers: list[Header], format: str, bad_objects: str
) -> tuple[list[Header], dict[str, pa.Array]]:
    """Returns the headers, and the columns of the objects that are left.

    With bad_objects="problem" the header of an image with a bad object has a problem. The column
    box_labels has class names if the source has them. Unusable images keep no object.
    """
    height, width = (
        np.array([getattr(header, name) for header in headers], np.int64)
        for name in ("height", "width")
    )

    # The image of each object, and the number of each image's first object.
    image, first = (
        np.repeat(np.arange(len(headers)), objects.counts),
        objects.counts.cumsum() - objects.counts,
    )
    usable = np.array([header.problem is None for header in headers], bool)[image]

    # Boxes of upright pictures refer to the upright size, and are turned to the stored image.
    turns = (
        np.array([header.orientation for header in headers], np.int64)
        if objects.annotated == "upright"
        else np.ones(len(headers), np.int64)
    )
    stored = np.stack([height, width], axis=1)
    sizes = turn_sizes(stored, turns)  # the sizes that the boxes refer to
    (up_height, up_width), turn = sizes[image].T, reverse(turns[image])
    with np.errstate(all="ignore"):  # numbers that are not finite are refused below
        corners = as_corners(objects.boxes, format, up_height, up_width)
        # in float32, as they are stored: a box may become empty or infinite by it
        boxes = turn_boxes(corners, turn, stored[image]).astype(np.float32)

    # Keypoints likewise: x and y are scaled, and the visibility is left as it is.
    if objects.keypoints is not None and format.startswith("relative_"):
        scale = np.stack([up_width, up_height, np.ones(len(image))], -1)
        objects = replace(
            objects, keypoints=objects.keypoints * np.tile(scale, objects.keypoints.shape[1] // 3)
        )
    if objects.keypoints is not None and objects.annotated == "upright":
        points = objects.keypoints.reshape(len(image), -1, 3)
        with np.errstate(all="ignore"):
            points = turn_keypoints(points, turn, stored[image], objects.flipped)
        objects = replace(objects, keypoints=points.reshape(objects.keypoints.shape))

    # What is wrong with whole objects, and with parts of objects.
    fractions = are_like_fractions(corners) & (not format.startswith("relative_"))
    faults = find_faults(objects, boxes, height[image], width[image], usable, fractions)
    faults |= {number: why for number, why in objects.faults.items() if usable[number]}
    objects = keep_good_parts(objects, boxes)
    # An object whose box is bad too is listed once, for the box.
    parts = {
        number: why
        for number, why in objects.without.items()
        if usable[number] and number not in faults
    }

    # One line for each fault, at the image of its object.
    lines: list[list[str]] = [[] for _ in headers]
    named = {number: [why] for number, why in faults.items()} | parts
    for number in sorted(named):
        name = (
            objects.name(number) if objects.name else f"object {number - first[image[number]] + 1}"
        )
        lines[image[number]] += [f"{name}: {why}; correct it or remove it" for why in named[number]]

    # a bad object costs its image, which then keeps no object and no line in `dropped`
    if bad_objects == "problem":
        headers = headers.copy()
        for place, why in enumerate(lines):
            if why:
                more = [f"and {len(why) - _SHOWN:,} more"] if len(why) > _SHOWN else []
                headers[place] = headers[place]._replace(problem="; ".join(why[:_SHOWN] + more))
        usable = np.array([header.problem is None for header in headers], bool)[image]
        lines = [[] for _ in headers]

    # The objects that are left.
    keep = usable.copy()
    keep[list(faults)] = False
    counts = np.bincount(image[keep], minlength=len(headers))
    return headers, _columns(objects, boxes, keep, counts, ["\n".join(why) for why in lines])


def _columns(
    objects: SourceObjects,
    boxes: NDArray[np.float32],
    keep: NDArray[np.bool_],
    counts: NDArray[np.int64],
    dropped: list[str],
) -> dict[str, pa.Array]:
    kept = boxes[keep]
    area = areas_of(kept) if objects.areas is None else objects.areas[keep]
    columns = {
        "boxes": list_column(counts, kept.ravel(), 4),
        "box_labels": list_column(counts, objects.labels.filter(pa.array(keep))),
        "areas": list_column(counts, area.astype(np.float32)),
    }

    if objects.crowd is not None:
        columns["crowd"] = list_column(counts, objects.crowd[keep])
    if objects.keypoints is not None:
        columns["keypoints"] = list_column(
            counts, objects.keypoints[keep].astype(np.float32).ravel(), objects.keypoints.shape[1]
        )

    # One JSON list for each image, joined as text: the outlines are JSON already.
    if objects.outlines is not None:
        ends = np.append(0, counts.cumsum()).tolist()
        outlines = [text for text, good in zip(objects.outlines, keep, strict=True) if good]
        columns["outlines"] = pa.array(
            [f"[{', '.join(outlines[a:b])}]" for a, b in pairwise(ends)], TYPES["outlines"]
        )

    columns["dropped"] = pa.array(dropped, TYPES["dropped"])
    return {TARGET + name: values for name, values in columns.items()}
