"""Moves annotations that were made on upright pictures to the pixels of the files as they are
stored.

A camera that was turned stores the picture as its sensor saw it, with an EXIF tag that says how to
turn it. Most programs show the turned, upright picture.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.outlines import rasterize

ANNOTATED = (None, "stored", "upright")
# the doubt of annotated images that are turned, where no option says how they were annotated
TURNED = (
    "annotated images are turned by their EXIF tag, and their annotations are taken for those of "
    "the images as stored, though most programs show them upright; set annotated to 'upright' or "
    "'stored', as they were annotated"
)
# A stored image becomes upright if orientations 5 to 8 swap x and y, and then these mirror left to
# right, and top to bottom. The functions below go back: they mirror first, and swap then.
_ACROSS, _DOWN = (
    (2, 3, 6, 7),
    (3, 4, 7, 8),
)

Values = NDArray[Any]


def upright_size(height: Any, width: Any, orientation: Any) -> tuple[Any, Any]:
    """Height and width of the upright picture; takes numbers or arrays of them."""
    if isinstance(orientation, int):  # called once for each image, where NumPy is slow
        return (width, height) if orientation >= 5 else (height, width)
    swapped = orientation >= 5
    return np.where(swapped, width, height), np.where(swapped, height, width)


def boxes_to_stored(boxes: Values, height: Values, width: Values, orientation: Values) -> Values:
    """Moves boxes, (M, 4) left, top, right, bottom, of upright pictures with these sizes."""
    corners = points_to_stored(boxes.reshape(-1, 2, 2), height, width, orientation)
    mirrored = np.stack(
        [_is_mirrored(orientation, swapped=True), _is_mirrored(orientation, swapped=False)], axis=1
    )
    # On a mirrored axis the two corners change places, so that an inverted box is still found.
    return np.where(mirrored[:, None], corners[:, ::-1], corners).reshape(-1, 4)


def _is_mirrored(orientation: Values, swapped: bool) -> Values:
    """(M,) bool, which boxes have their stored x (`swapped`) or y mirrored."""
    across, down = np.isin(orientation, _ACROSS), np.isin(orientation, _DOWN)
    return np.where(orientation >= 5, down if swapped else across, across if swapped else down)


def points_to_stored(
    points: Values, height: Values, width: Values, orientation: Values, last: int = 0
) -> Values:
    """Moves points, (M, K, 2) x, y, of upright pictures; the sizes are (M,).

    Args:
        last: 1 for keypoints, which are measured from the center of the first pixel; 0 for corners
            of boxes, which are measured from its corner.
    """
    x, y = points[..., 0], points[..., 1]
    x = np.where(np.isin(orientation, _ACROSS)[:, None], width[:, None] - last - x, x)
    y = np.where(np.isin(orientation, _DOWN)[:, None], height[:, None] - last - y, y)
    swapped = (orientation >= 5)[:, None]
    return np.stack([np.where(swapped, y, x), np.where(swapped, x, y)], axis=-1)


def keypoints_to_stored(
    values: Values, height: Values, width: Values, orientation: Values, flipped: list[int]
) -> Values:
    """Moves keypoints, (M, 3 K) of x, y, visibility.

    Where the file is a mirror image, left and right ones change places.

    Args:
        flipped: as in `Keypoints`.
    """
    keypoints = values.reshape(len(values), -1, 3)
    moved = np.concatenate(
        [points_to_stored(keypoints[..., :2], height, width, orientation, 1), keypoints[..., 2:]],
        axis=2,
    )
    # the other orientations are turns alone
    mirrored = np.isin(orientation, (2, 4, 5, 7))
    return np.where(mirrored[:, None, None], moved[:, flipped], moved).reshape(values.shape)


def mask_to_stored(mask: Values, orientation: int) -> Values:
    """Turns an (H, W) mask, or (H, W, C) values, of an upright picture to the file as it is
    stored.
    """
    mask = mask[:: -1 if orientation in _DOWN else 1, :: -1 if orientation in _ACROSS else 1]
    return mask.swapaxes(0, 1) if orientation >= 5 else mask


def outline_to_stored(outline: Any, height: int, width: int, orientation: int) -> Any:
    """Moves an outline of an upright picture of this size.

    Args:
        outline: one that `problem_of` finds nothing wrong with.
    """
    if orientation == 1 or not outline:
        return outline

    if not isinstance(outline, dict):
        tall, wide, turn = np.array([height]), np.array([width]), np.array([orientation])
        polygons = [np.array(numbers, np.float64).reshape(1, -1, 2) for numbers in outline]
        return [
            points_to_stored(polygon, tall, wide, turn).ravel().tolist() for polygon in polygons
        ]

    # run lengths go down the columns, and begin with one outside the object, maybe of no pixel
    mask = mask_to_stored(rasterize(outline, height, width), orientation)
    flat = mask.T.ravel()
    ends = np.concatenate(
        [[0] if flat[0] else [], np.flatnonzero(np.diff(flat)) + 1, [flat.size]]
    ).astype(np.int64)
    return {"size": list(mask.shape), "counts": np.diff(ends, prepend=0).tolist()}
