"""Boxes, areas and keypoints that most likely mean something else than they are read as:
`find_object_doubts`.

Most are looked for one by one, and a doubt is a share of them (`_LOOKS`). Whether boxes are in
percent shows only in all of them together (`_Extent`).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.objects import Objects
from dali_pipes.data.omissions import Omission

_NAMED = 3  # names that a doubt has
# How far a box or a point reaches out of its image where it was rounded or drawn by hand.
_PIXELS, _SHARE = 2, 0.02
_LARGER, _SMALLER = 1.1, 0.01  # than its box, is an area that belongs to another box
_FAR = 0.5  # of its side, is a point outside of its box that belongs to another one
# boxes in fractions end within the first pixel, or little after it, of an image that is larger
_FIRST_PIXEL, _TINY = 1.5, 4
# by the number that stands for the whole side: how it is called, and the smallest image in pixels
# of which boxes would not all end there by chance
_SCALES = {100: ("percent", 200), 1000: ("thousandths", 1100)}
_FEWEST_BOXES, _NEARLY, _ROUNDED = 20, 0.9, 1.001

# (M,) or (M, K) bool: which boxes or points are odd, and which were looked at
_Found = tuple[NDArray[np.bool_], NDArray[np.bool_]]
_NOTHING: _Found = (np.zeros(0, bool), np.zeros(0, bool))


class _ObjectLook(NamedTuple):
    """What is looked for.

    Attributes:
        what: the doubt; {among} is how many were looked at.
        find: finds the odd ones among the objects, given width and height of each one's image.
        share, fewest: from which share of them, and from how many, they are a doubt; fewer are
            mistakes of single ones.
    """

    what: str
    find: Callable[[Objects, NDArray[np.int64]], _Found]
    share: float = 0.1
    fewest: int = 3


def find_object_doubts(images: ImageTable) -> Iterator[Omission]:
    """Boxes, areas and keypoints that are of another form than they are read as."""
    if not images.has_target("boxes"):
        return
    found, extent = list(map(_Odd, _LOOKS)), _Extent()
    for ids in images.rows.blocks():
        objects = images.take_objects(ids)
        if objects is None or not len(objects.boxes):
            continue
        size = images.take_sizes(ids)[objects.images][:, ::-1]
        extent.add(objects.boxes, size, ids[objects.images], images)
        for odd in found:
            odd.add(objects, size, ids[objects.images], images)

    yield from extent.doubts()
    for odd in found:
        if odd.number >= max(odd.look.fewest, odd.look.share * odd.among):
            what = odd.look.what.format(among=odd.among)
            yield Omission(what, odd.number, odd.names, "doubt")


class _Odd:
    """Counts what is odd of one kind.

    Attributes:
        number, among: how many are odd, and of how many.
        names: the first images with odd ones.
    """

    def __init__(self, look: _ObjectLook):
        self.look = look
        self.number = self.among = 0
        self.names: list[str] = []

    def add(
        self, objects: Objects, size: NDArray[np.int64], ids: NDArray[np.int64], images: ImageTable
    ) -> None:
        """Looks at further objects.

        Args:
            size: (M, 2) width and height of the image of each object.
            ids: (M,) its sample id.
        """
        odd, looked = self.look.find(objects, size)
        self.number += int(odd.sum())
        self.among += int(looked.sum())
        if odd.any() and len(self.names) < _NAMED:
            rows = odd if odd.ndim == 1 else odd.any(axis=1)
            some = np.unique(ids[rows])[: _NAMED - len(self.names)]
            self.names += [images.relative_name(each) for each in some.tolist()]


class _Extent:
    """How far to the right and down all boxes reach, and how small their images are."""

    def __init__(self) -> None:
        self.number = 0
        self.names: list[str] = []
        self._reach = np.zeros(2)
        self._smallest = np.inf

    def add(
        self,
        boxes: NDArray[np.float32],
        size: NDArray[np.int64],
        ids: NDArray[np.int64],
        images: ImageTable,
    ) -> None:
        self.number += len(boxes)
        self._reach = np.maximum(self._reach, boxes[:, 2:].max(axis=0))
        self._smallest = min(self._smallest, size.min())
        if len(self.names) < _NAMED:
            some = np.unique(ids)[: _NAMED - len(self.names)]
            self.names += [images.relative_name(each) for each in some.tolist()]

    def doubts(self) -> Iterator[Omission]:
        for limit, (name, smallest) in _SCALES.items():
            if (
                self.number >= _FEWEST_BOXES
                and self._smallest >= smallest
                and self._reach.min() >= _NEARLY * limit
                and self._reach.max() <= _ROUNDED * limit
            ):
                yield Omission(
                    f"boxes of which none reaches beyond {limit}, as {name} of the image; divide "
                    f"by {limit} and give relative_… as the box_format, such as relative_xyxy; "
                    "in a file of COCO's form write pixels",
                    self.number,
                    self.names,
                    "doubt",
                )


def _are_out(objects: Objects, size: NDArray[np.int64]) -> _Found:
    over = np.maximum(-objects.boxes[:, :2], objects.boxes[:, 2:] - size)
    is_out = (over > np.maximum(_PIXELS, _SHARE * size)).any(axis=1)
    return is_out, np.ones(len(is_out), bool)


def _are_like_fractions(objects: Objects, size: NDArray[np.int64]) -> _Found:
    is_looked = np.asarray((size > _TINY).all(axis=1))
    is_small = np.asarray((objects.boxes[:, 2:] <= _FIRST_PIXEL).all(axis=1))
    return is_looked & is_small, is_looked


def _are_too_large(objects: Objects, size: NDArray[np.int64]) -> _Found:
    if objects.areas is None:
        return _NOTHING
    sides = objects.boxes[:, 2:] - objects.boxes[:, :2]
    # an area of a mask is smaller than that of its box
    is_large = objects.areas > _LARGER * (sides + 1).prod(axis=1)
    return is_large, np.ones(len(is_large), bool)


def _are_too_small(objects: Objects, size: NDArray[np.int64]) -> _Found:
    if objects.areas is None:
        return _NOTHING
    of_box = (objects.boxes[:, 2:] - objects.boxes[:, :2]).prod(axis=1)
    return objects.areas < _SMALLER * of_box, of_box > 0


def _are_points_out(objects: Objects, size: NDArray[np.int64]) -> _Found:
    if objects.keypoints is None:
        return _NOTHING
    is_labelled = objects.keypoints[..., 2] > 0
    return _are_beyond_image(objects.keypoints, size) & is_labelled, is_labelled


def _are_beyond_image(points: NDArray[np.float32], size: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(M, K) which points are not in their images."""
    places = points[..., :2]
    over = np.maximum(-places, places - (size - 1)[:, None])
    return np.asarray((over > np.maximum(_PIXELS, _SHARE * size)[:, None]).any(axis=2))


def _are_far_from_boxes(objects: Objects, size: NDArray[np.int64]) -> _Found:
    """The points outside of their images are told already."""
    if objects.keypoints is None:
        return _NOTHING
    points, is_labelled = objects.keypoints, objects.keypoints[..., 2] > 0
    first, last = objects.boxes[:, None, :2], objects.boxes[:, None, 2:]
    over = np.maximum(first - points[..., :2], points[..., :2] - last)
    is_far = (over > _FAR * (last - first) + _PIXELS).any(axis=2)
    # those that stand for no place are told by themselves
    is_looked = is_labelled & ~_are_nowhere(points)
    return is_far & is_looked & ~_are_beyond_image(points, size), is_looked


def _are_hidden(objects: Objects, size: NDArray[np.int64]) -> _Found:
    if objects.keypoints is None:
        return _NOTHING
    x, y, visibility = np.moveaxis(objects.keypoints, 2, 0)
    # a point at 0, 0 has no place; where the picture is turned, that is another corner
    right, bottom = (size - 1).T[..., None]
    is_corner = ((x == 0) | (x == right)) & ((y == 0) | (y == bottom))
    return ~is_corner & (visibility == 0), ~is_corner


def _are_placed_nowhere(objects: Objects, size: NDArray[np.int64]) -> _Found:
    if objects.keypoints is None:
        return _NOTHING
    is_labelled = objects.keypoints[..., 2] > 0
    return _are_nowhere(objects.keypoints) & is_labelled, is_labelled


def _are_nowhere(points: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(M, K) which points are at (0, 0) or (-1, -1), as programs write those that are not there."""
    places = points[..., :2]
    return np.asarray((places == 0).all(axis=2) | (places == -1).all(axis=2))


_LOOKS = (
    _ObjectLook(
        "of {among:,} boxes, those that reach out of their images, as x1, y1, x2, y2 do where "
        "x, y, width, height are read, or boxes of an image of another size; give the box_format "
        "in which they are written (in a file of COCO's form x, y, width, height), or correct them",
        _are_out,
    ),
    _ObjectLook(
        "of {among:,} boxes, those that end within the first pixels of their images, as if they "
        "were in fractions; give relative_… as the box_format, such as relative_xyxy, or write "
        "them in pixels",
        _are_like_fractions,
        share=0.9,
    ),
    _ObjectLook(
        "of {among:,} areas, those that are larger than their boxes; give the box_format in "
        "which they are written (in a file of COCO's form x, y, width, height), or correct the "
        "areas",
        _are_too_large,
    ),
    _ObjectLook(
        "of {among:,} areas, those of less than 1 % of their boxes; leave areas out or correct "
        "them",
        _are_too_small,
        share=0.5,
    ),
    _ObjectLook(
        "of {among:,} keypoints, those outside of their images; write x, y in pixels, and the "
        "visibility after them",
        _are_points_out,
    ),
    _ObjectLook(
        "of {among:,} keypoints, those far outside of the boxes of their objects; write x, y in "
        "pixels of the image, not of the box",
        _are_far_from_boxes,
        share=0.25,
    ),
    _ObjectLook(
        "of {among:,} keypoints that have a place, those with the visibility 0, which are not "
        "learned; give 1 or 2",
        _are_hidden,
        share=0.6,
    ),
    _ObjectLook(
        "of {among:,} labelled keypoints, those exactly at (0, 0) or (-1, -1), as where a point is "
        "missing; give such points the visibility 0",
        _are_placed_nowhere,
    ),
)
