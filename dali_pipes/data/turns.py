"""EXIF's turns. A camera that was turned stores the picture as its sensor saw it, with a tag, the
orientation, that says how to turn it. Most programs show the turned, upright picture.

An orientation is 1 to 8, and 1 turns nothing. All functions turn from stored to upright; with the
orientation that `reverse` gives they turn from upright to stored.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

# What the orientations do: rows become columns first, then left and right are swapped, and top and
# bottom. An odd number of these mirrors the picture, an even number only rotates it.
TRANSPOSED, FLIPS, VERTICAL_FLIPS = (5, 6, 7, 8), (2, 3, 6, 7), (3, 4, 7, 8)
_MIRRORED = (2, 4, 5, 7)
_REVERSE = np.array([0, 1, 2, 3, 4, 5, 8, 7, 6])
_METHODS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Values = NDArray[Any]


def reverse(orientation: Any) -> Any:
    """Returns the orientation that turns back, of a number or of an array of them."""
    return _REVERSE[orientation]


def turn_size(height: int, width: int, orientation: int) -> tuple[int, int]:
    return (width, height) if orientation in TRANSPOSED else (height, width)


def turn_sizes(sizes: Values, orientations: Values) -> Values:
    """Turns (N, 2) heights and widths by (N,) orientations."""
    return np.where((orientations >= TRANSPOSED[0])[:, None], sizes[:, ::-1], sizes)


def turn_picture(picture: Image.Image, orientation: int) -> Image.Image:
    method = _METHODS.get(orientation)
    return picture if method is None else picture.transpose(method)


def turn_array(array: Values, orientation: int) -> Values:
    """Turns an (H, W) or (H, W, C) array."""
    array = array.swapaxes(0, 1) if orientation in TRANSPOSED else array
    rows, columns = (-1 if orientation in flips else 1 for flips in (VERTICAL_FLIPS, FLIPS))
    return array[::rows, ::columns]


def turn_matrices(orientations: Values, sizes: Values) -> NDArray[np.float64]:
    """Returns (N, 3, 3) matrices from x and y before the turn to those after it.

    Args:
        sizes: (N, 2) heights and widths after the turn, for x and y that are measured from the
            corner of the first pixel, as those of boxes are; 1 less for those that are measured
            from its center, as those of keypoints are.
    """
    matrices = np.tile(np.eye(3), (len(orientations), 1, 1))
    matrices[np.isin(orientations, TRANSPOSED)] = [[0, 1, 0], [1, 0, 0], [0, 0, 1]]

    # x has the second of (height, width)
    for row, axis, flips in ((0, 1, FLIPS), (1, 0, VERTICAL_FLIPS)):
        is_flipped = np.isin(orientations, flips)
        matrices[is_flipped, row] *= -1
        matrices[is_flipped, row, 2] += sizes[is_flipped, axis]
    return matrices


def move_points(points: Values, matrices: NDArray[np.float64]) -> Values:
    """Moves (N, K, 2) x and y by (N, 3, 3) matrices."""
    return points @ matrices[:, :2, :2].swapaxes(1, 2) + matrices[:, None, :2, 2]


def turn_boxes(boxes: Values, orientations: Values, sizes: Values) -> NDArray[np.float64]:
    """Turns (M, 4) left, top, right, bottom; an inverted box stays inverted.

    Args:
        orientations: (M,).
        sizes: (M, 2) heights and widths of the images after the turn.
    """
    boxes, some = boxes.astype(np.float64), np.flatnonzero(orientations != 1)
    matrices = turn_matrices(orientations[some], sizes[some])
    corners = move_points(boxes[some].reshape(-1, 2, 2), matrices)
    # on a mirrored axis the two corners change places, so that the smaller stays the first
    is_mirrored = matrices[:, :2, :2].sum(axis=2) < 0
    boxes[some] = np.where(is_mirrored[:, None], corners[:, ::-1], corners).reshape(-1, 4)
    return boxes


def turn_keypoints(
    keypoints: Values, orientations: Values, sizes: Values, flipped: list[int]
) -> NDArray[np.float64]:
    """Turns (M, K, 3) x, y, visibility; left and right ones change places where it mirrors.

    Args:
        orientations: (M,).
        sizes: (M, 2) heights and widths of the images after the turn.
        flipped: as in `Keypoints`.
    """
    keypoints, some = keypoints.astype(np.float64), np.flatnonzero(orientations != 1)
    moved = keypoints[some]
    moved[..., :2] = move_points(moved[..., :2], turn_matrices(orientations[some], sizes[some] - 1))
    is_mirrored = np.isin(orientations[some], _MIRRORED)[:, None, None]
    keypoints[some] = np.where(is_mirrored, moved[:, flipped], moved)
    return keypoints
