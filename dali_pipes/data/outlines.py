"""Outlines of objects as COCO writes them: a list of polygons, or run lengths, as numbers or packed
into text.

`problem_of` and `are_polygons` check outlines, and `rasterize` draws one. The form is described at
https://cocodataset.org/#format-data; the packing is that of rleToString in pycocotools'
common/maskApi.c.
"""

from collections.abc import Sequence
from itertools import chain, compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.turns import move_points, reverse, turn_array, turn_matrices, turn_size
from dali_pipes.errors import ConfigError

_BLOCK = 2**12  # outlines whose points are checked together, to bound the memory
_NUMBERS = {int, float}
_LONGEST = 7  # characters of a packed number, which is 35 bits


def rasterize(outline: Any, height: int, width: int) -> NDArray[np.bool_]:
    """Draws one object's outline as an (H, W) bool mask, with the same pixels as pycocotools.

    An empty outline covers nothing of the image.

    Args:
        outline: one that `problem_of` finds nothing wrong with, of an image of this height and
            width in pixels.

    Raises:
        ConfigError: pycocotools, which draws polygons, is not installed.
    """
    counts = (
        outline["counts"] if isinstance(outline, dict) else _draw_polygons(outline, height, width)
    )
    runs = _read_runs(counts)
    # runs alternate between outside and inside, and go down the columns
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T


def _draw_polygons(polygons: list[list[float]], height: int, width: int) -> str | list[int]:
    """Run lengths of the pixels that are inside any of the polygons."""
    if not polygons:
        return [height * width]
    try:
        from pycocotools import mask
    except ImportError:
        raise ConfigError(
            "masks of polygons need pycocotools; pip install 'dali_pipes[coco]'"
        ) from None
    return mask.merge(mask.frPyObjects(polygons, height, width))["counts"].decode()


def outline_to_stored(outline: Any, height: int, width: int, orientation: int) -> Any:
    """Moves an outline of the upright picture to the image as it is stored.

    Args:
        outline: one that `problem_of` finds nothing wrong with.
        height, width: of the image as stored.
    """
    if orientation == 1:
        return outline

    back = reverse(orientation)
    if not isinstance(outline, dict):
        matrices = turn_matrices(np.array([back]), np.array([[height, width]]))
        polygons = [np.array(numbers, np.float64).reshape(1, -1, 2) for numbers in outline]
        return [move_points(polygon, matrices).ravel().tolist() for polygon in polygons]

    # run lengths go down the columns, and begin with one outside the object, maybe of no pixel
    mask = turn_array(rasterize(outline, *turn_size(height, width, orientation)), back)
    flat = mask.T.ravel()
    ends = np.concatenate(
        [[0] if flat[0] else [], np.flatnonzero(np.diff(flat)) + 1, [flat.size]]
    ).astype(np.int64)
    return {"size": [height, width], "counts": np.diff(ends, prepend=0).tolist()}


def problem_of(outline: Any, height: int, width: int) -> str | None:
    """Says what is wrong with an outline in an image of this size; None: nothing."""
    if isinstance(outline, dict):
        return _problem_of_runs(outline, height, width)
    if not isinstance(outline, list) or not all(isinstance(polygon, list) for polygon in outline):
        return "its segmentation is neither a list of polygons nor run lengths"

    for polygon in outline:
        if len(polygon) < 6 or len(polygon) % 2:
            return (
                f"a polygon of {len(polygon)} numbers; x and y of at least three points are needed"
            )

        points = _to_finite_array(polygon)
        if (
            points is None
            or (
                # the distance from the center: half the image to its border, and the image's size
                # beyond it
                np.abs(points.reshape(-1, 2) - (width / 2, height / 2))
                > (1.5 * width, 1.5 * height)
            ).any()
        ):
            return (
                "a polygon with a point that is not finite, or farther outside than the image "
                "is wide or high"
            )

    return None


def are_polygons(
    outlines: Sequence[Any], height: NDArray[np.int64], width: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Finds the outlines that are polygons without a fault, many at a time.

    `problem_of` has to look at the others only. An empty list counts as polygons.

    Args:
        height, width: (M,) of their images, in pixels.

    Returns:
        (M,) bool.
    """
    are_good = np.zeros(len(outlines), bool)
    for start in range(0, len(outlines), _BLOCK):
        some = slice(start, start + _BLOCK)
        are_good[some] = _look_at_polygons(
            outlines[some], np.stack([width[some], height[some]], axis=1)
        )
    return are_good


def _look_at_polygons(outlines: Sequence[Any], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Checks outlines as `are_polygons` does, all their points at once.

    Returns all False if one of the numbers is no number.
    """
    are_good = np.array(
        [type(outline) is list and all(map(_has_points, outline)) for outline in outlines], bool
    )

    # all points of all polygons in one array, and the outline of each
    owner = [place for place in np.flatnonzero(are_good).tolist() for _ in outlines[place]]
    polygons = list(chain.from_iterable(compress(outlines, are_good.tolist())))
    numbers = list(chain.from_iterable(polygons))
    # NumPy would also take texts and booleans for numbers
    if not _NUMBERS.issuperset(map(type, numbers)):
        return np.zeros(len(outlines), bool)
    try:
        points = np.array(numbers, np.float64).reshape(-1, 2)
    except OverflowError:  # a whole number of hundreds of digits
        return np.zeros(len(outlines), bool)

    of_point = np.repeat(np.array(owner, np.int64), [len(polygon) // 2 for polygon in polygons])
    # as in `problem_of`
    near = np.abs(points - sizes[of_point] / 2) <= 1.5 * sizes[of_point]
    are_good[of_point[~near.all(axis=1)]] = False
    return are_good


def _has_points(polygon: Any) -> bool:
    return type(polygon) is list and len(polygon) >= 6 and not len(polygon) % 2


def _problem_of_runs(outline: dict[str, Any], height: int, width: int) -> str | None:
    if outline.get("size") != [height, width]:
        size = f"{outline.get('size')!r:.40}"
        return (
            f"run lengths of a mask of another size ({size}, and the image is [{height}, {width}])"
        )

    try:
        runs = _read_runs(outline["counts"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return "run lengths that cannot be read"

    # each run by itself too, since the sum of some that are too long may overflow to the right one
    if (runs < 0).any() or (runs > height * width).any() or runs.sum() != height * width:
        return f"run lengths that are not all pixels of the image ({height} × {width})"
    return None


def _to_finite_array(numbers: Sequence[Any]) -> NDArray[np.float64] | None:
    try:
        array = np.array(numbers)
    except (TypeError, ValueError, OverflowError):
        return None
    if array.dtype.kind not in "iuf":  # NumPy would read "1", which pycocotools cannot draw
        return None
    return array.astype(np.float64) if array.ndim == 1 and np.isfinite(array).all() else None


def _read_runs(counts: str | list[int]) -> NDArray[np.int64]:
    """Reads the lengths of the runs; the first run is outside the object.

    Raises:
        TypeError, ValueError or OverflowError: they are not run lengths.
    """
    if not isinstance(counts, str):
        if not all(type(count) is int for count in counts):
            raise TypeError
        return np.array(counts, np.int64)

    codes = np.frombuffer(counts.encode("ascii"), np.uint8).astype(np.int64) - 48

    # a number has 5 bits a character, the lowest first; its last character lacks 0x20
    ends = np.flatnonzero(codes & 0x20 == 0)
    if ((codes < 0) | (codes > 63)).any() or not len(ends) or ends[-1] != len(codes) - 1:
        raise ValueError
    begins = np.append(0, ends[:-1] + 1)
    if (ends - begins >= _LONGEST).any():
        raise ValueError

    shifts = 5 * (np.arange(len(codes)) - np.repeat(begins, ends - begins + 1))
    # 0x10 in the last character is the sign
    runs = np.add.reduceat((codes & 0x1F) << shifts, begins) - np.where(
        codes[ends] & 0x10, 1 << (shifts[ends] + 5), 0
    )

    # from the fourth run on, the stored number is the difference to the run two before it
    runs[1::2] = runs[1::2].cumsum()
    runs[2::2] = runs[2::2].cumsum()
    return runs
