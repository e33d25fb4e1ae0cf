"""From the objects of a source to columns of a manifest.

`check_objects` turns boxes into corners in pixels of the stored image, lists what is wrong with
objects, and returns the columns of the good ones.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data.image_files.headers import Header
from dali_pipes.data.objects import TARGET, TYPES
from dali_pipes.data.sources.rows.object_faults import (
    are_like_fractions,
    areas_of,
    find_faults,
    keep_good_parts,
)
from dali_pipes.data.sources.rows.object_labels import list_column
from dali_pipes.data.sources.rows.source_objects import SourceObjects
from dali_pipes.data.upright import boxes_to_stored, keypoints_to_stored, upright_size

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
        else np.ones(len(headers))
    )
    sizes = upright_size(height, width, turns)  # the sizes that the boxes refer to
    up_height, up_width, turn = sizes[0][image], sizes[1][image], turns[image]
    with np.errstate(all="ignore"):  # numbers that are not finite are refused below
        corners = as_corners(objects.boxes, format, up_height, up_width)
        # in float32, as they are stored: a box may become empty or infinite by it
        boxes = boxes_to_stored(corners, up_height, up_width, turn).astype(np.float32)

    # Keypoints likewise: x and y are scaled, and the visibility is left as it is.
    if objects.keypoints is not None and format.startswith("relative_"):
        scale = np.stack([up_width, up_height, np.ones(len(image))], -1)
        objects = replace(
            objects, keypoints=objects.keypoints * np.tile(scale, objects.keypoints.shape[1] // 3)
        )
    if objects.keypoints is not None and objects.annotated == "upright":
        objects = replace(
            objects,
            keypoints=keypoints_to_stored(
                objects.keypoints, up_height, up_width, turn, objects.flipped
            ),
        )

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
