"""What is wrong with objects: a box that is empty or outside its image costs the object; an area or
keypoints that make no sense cost only themselves.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data.sources.rows.source_objects import SourceObjects

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
