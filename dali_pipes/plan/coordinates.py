"""Moves boxes, keypoints and the pixels of a mask as the plan moves an image's pixels.

`turn_upright` turns objects by their image's EXIF tag, `move_objects` takes them from the image to
the output, and `to_stored` leads back. `mask_indices` does for masks what `move_objects` does for
boxes, except for augmentation.

Boxes and keypoints go where `torchvision.transforms.v2.functional` moves them with the same region,
size, crop, flips and affine operations, to 10⁻⁴ pixels. As there, boxes are measured from the
corner of the first pixel, so a flip takes x to width - x, and keypoints from its centre, so a flip
takes x to width - 1 - x; resize, shear, translation and rotation treat both alike.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.objects import Keypoints, Objects
from dali_pipes.data.turns import turn_boxes, turn_keypoints, turn_matrices
from dali_pipes.plan.geometry import Geometry, Int, Pair
from dali_pipes.plan.steps.operations import CODE, MOVES, Augmentation, affine_matrices

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
# How a mask is resized, always to a value of its own: "nearest-exact" as PyTorch's mode of that
# name; "nearest" as PyTorch's, which torchvision uses for a `tv_tensors.Mask`, and which is half a
# pixel off; "pillow" as Pillow's NEAREST.
MASK_INTERPOLATIONS = ("nearest-exact", "nearest", "pillow")
_AFFINE_CODES = [CODE[op] for op in MOVES]


def turn_upright(
    objects: Objects,
    orientations: NDArray[np.int8],
    upright: Int,
    keypoints: Keypoints | None = None,
) -> Objects:
    """The objects of images that are turned upright by their EXIF tag.

    Args:
        orientations: (N,) EXIF's, 1 to 8.
        upright: (N, 2) heights and widths of the turned images, as in `Geometry.source`.
        keypoints: swapped as by a flip where the tag mirrors the image.
    """
    tags, sizes, points = (
        orientations[objects.images],
        upright[objects.images],
        objects.keypoints,
    )
    if points is not None:
        flipped = keypoints.flipped if keypoints else list(range(points.shape[1]))
        points = turn_keypoints(points, tags, sizes, flipped).astype(np.float32)
        points = np.where(points[..., 2:] > 0, points, 0)
    boxes = turn_boxes(objects.boxes, tags, sizes).astype(np.float32)
    return replace(objects, boxes=boxes, keypoints=points)


def move_objects(
    objects: Objects,
    geometry: Geometry,
    augmentation: Augmentation,
    shape: Pair,
    keypoints: Keypoints | None = None,
    min_size: float = 1.0,
    centered: bool = False,
) -> tuple[Objects, Bool]:
    """The objects of N images in pixels of the output, without those that have left it.

    Boxes are clipped to what is visible of the image, after the crop and after every affine
    operation, which gives the smallest box around the four moved corners. Boxes that end up
    narrower or lower than `min_size`, without area, or NaN are removed. This is torchvision's
    ClampBoundingBoxes after each step, and SanitizeBoundingBoxes at the end. Areas are scaled with
    the image and by the share of the box that is still visible.

    Keypoints that are not visible at some step, and those whose visibility is 0, become (0, 0, 0),
    which is what COCO has for a keypoint without a label; torchvision would leave the number. The
    keypoints of a mirrored image are swapped by `keypoints`, which torchvision leaves to the
    caller. Both flips together are a rotation, after which the keypoints keep their names.

    Args:
        objects: in pixels of the images as planned, `Geometry.source`; `turn_upright` turns them.
        geometry, augmentation: of the N images.
        shape: height and width of the output.
        min_size: in pixels.
        centered: whether boxes are removed whose centre is not within the region, as torchvision's
            RandomIoUCrop does.

    Returns:
        The objects that are left, and a mask of M booleans that says which these are.
    """
    images, canvas = objects.images, np.array(shape[::-1])
    places = _Places(objects)
    # x, y order from here on: a geometry has heights before widths
    start, size, to, crop = (
        pairs[images, ::-1]
        for pairs in (
            geometry.region_start,
            geometry.region_size,
            geometry.resize,
            geometry.crop,
        )
    )

    # RandomIoUCrop looks at the boxes before it crops them
    centers = objects.boxes.reshape(-1, 2, 2).mean(axis=1, dtype=np.float64) - start
    within = (
        ((centers > 0) & (centers < size)).all(axis=1) if centered else np.ones(len(images), bool)
    )

    # resize and crop; what is visible of the image may be a part of the output
    places.scale(to / size, start, crop)
    places.clip(np.maximum(-crop, 0), np.minimum(to - crop, canvas))

    flip, vertical = geometry.flip[images], geometry.vertical_flip[images]
    places.mirror(0, flip, canvas[0])
    places.mirror(1, vertical, canvas[1])
    places.rename(flip ^ vertical, keypoints)
    places.hide(canvas)

    # each slot of augmentation moves the boxes once more
    for ops, magnitudes in zip(augmentation.ops.T, augmentation.magnitudes.T, strict=True):
        if np.isin(ops, _AFFINE_CODES).any():
            places.transform(affine_matrices(ops, magnitudes, shape)[images])
            places.clip(np.zeros(2), canvas)
            places.hide(canvas)

    # so does each function of the user's that moves pixels
    for matrices in augmentation.moves.swapaxes(0, 1):
        places.transform(matrices[images])
        places.clip(np.zeros(2), canvas)
        places.hide(canvas)

    boxes = places.boxes.reshape(-1, 4).astype(np.float32)
    sides = boxes[:, 2:] - boxes[:, :2]
    kept = within & ((sides >= min_size) & (sides > 0)).all(axis=1)
    areas = (
        None
        if objects.areas is None
        else (objects.areas * (to / size).prod(axis=1) * places.visible).astype(np.float32)
    )

    return replace(objects, boxes=boxes, areas=areas, keypoints=places.labeled_points()).keep(
        kept
    ), kept


def to_stored(
    geometry: Geometry, augmentation: Augmentation, shape: Pair, orientations: NDArray[np.int8]
) -> Float:
    """(N, 2, 3) float64 matrices from x and y of boxes in the output to those in the stored images.

    Args:
        geometry, augmentation: of the N images; the matrix is NaN for an image that an affine
            operation or a function of the user's moves.
        shape: height and width of the output.
        orientations: (N,) EXIF's, by which the images were turned before; 1: not turned.
    """
    # the steps of `move_objects`, as one matrix for each image, which is then inverted
    start, scale = geometry.region_start, geometry.resize / geometry.region_size
    forward = turn_matrices(orientations, geometry.source)

    for row, axis in ((0, 1), (1, 0)):  # x has the second of (height, width)
        forward[:, row, 2] -= start[:, axis]
        forward[:, row] *= scale[:, axis, None]
        forward[:, row, 2] -= geometry.crop[:, axis]
        _mirror(
            forward,
            row,
            (geometry.vertical_flip, geometry.flip)[axis],
            np.full(len(geometry), shape[axis], np.float64),
        )

    back = np.linalg.inv(forward)[:, :2].astype(np.float64)
    back[np.isin(augmentation.ops, _AFFINE_CODES).any(axis=1)] = np.nan
    if augmentation.moves.shape[1]:
        back[(augmentation.moves != np.eye(2, 3)).any(axis=(1, 2, 3))] = np.nan
    return back


def _mirror(forward: Float, row: int, where: Bool, length: Float) -> None:
    # x becomes length - x: boxes are measured from the corner of the first pixel
    forward[where, row] *= -1
    forward[where, row, 2] += length[where]


def mask_indices(
    geometry: Geometry, shape: Pair, interpolation: str = "nearest-exact"
) -> tuple[Int, Int]:
    """Which row and column of a mask each row and column of the output shows; -1 outside the image.

    `mask[rows][:, columns]`, with another value where one is -1, equals what torchvision's crop,
    resize, crop and flips make of a uint8 or float32 mask on a CPU.

    Args:
        geometry: of one image; the mask is upright, as the image is.
        shape: height and width of the output.
        interpolation: of the resize, one of `MASK_INTERPOLATIONS`.
    """
    rows, columns = (_nearest(geometry, axis, shape[axis], interpolation) for axis in (0, 1))
    return rows[:: -1 if geometry.vertical_flip else 1], columns[:: -1 if geometry.flip else 1]


def _nearest(geometry: Geometry, axis: int, length: int, interpolation: str) -> Int:
    """The source index of each output pixel."""
    size, to = int(geometry.region_size[axis]), int(geometry.resize[axis])
    pixel = np.arange(length) + geometry.crop[axis]

    if interpolation == "pillow":
        source = _pillow_sources(size, to)[pixel.clip(0, to - 1)]
    elif interpolation == "nearest":
        # the left edge of each pixel, in float32, as in HelperInterpNearest of UpSampleKernel.cpp
        source = pixel.astype(np.float32) * (np.float32(size) / np.float32(to))
    else:
        source = _exact_sources(pixel, size, to, int(geometry.resize.sum()))

    nearest = np.minimum(np.floor(source).astype(np.int64), size - 1) + geometry.region_start[axis]
    return np.where((pixel >= 0) & (pixel < to), nearest, -1)


def _exact_sources(pixel: Int, size: int, to: int, sides: int) -> NDArray[np.float32]:
    """Positions in the source by ATen's "nearest-exact" in float32.

    A position may be exactly between two pixels. ATen's two kernels for the CPU round such ties
    differently.

    Args:
        sides: height and width after the resize, added up.
    """
    center, scale = pixel.astype(np.float32) + np.float32(0.5), np.float32(size) / np.float32(to)
    if sides <= 128:  # _use_vectorized_kernel_cond_2d in UpSampleKernel.cpp
        return center * scale
    # a fused multiply-add: the product is not rounded
    return (np.float64(scale) * center - 0.5).astype(np.float32).clip(0) + np.float32(0.5)


def _pillow_sources(size: int, to: int) -> Float:
    """Positions in the source of all `to` pixels, as Pillow adds them up (ImagingScaleAffine in
    Geometry.c): the errors of the sum decide at ties.
    """
    step = size / to
    return np.cumsum(np.concatenate([[step * 0.5], np.full(to - 1, step)]))


class _Places:
    """Boxes and keypoints of M objects, which are moved step by step.

    Attributes:
        boxes: (M, 2, 2) x and y of two opposite corners, the smaller ones first.
        points: (M, K, 2) x, y.
        labels: (M, K) visibility.
        visible: (M,) the share of each box that is still visible.
    """

    def __init__(self, objects: Objects):
        self.boxes: Float = objects.boxes.reshape(-1, 2, 2).astype(np.float64)
        self._has_points = objects.keypoints is not None
        keypoints = (
            np.zeros((len(self.boxes), 0, 3), np.float32)
            if objects.keypoints is None
            else objects.keypoints
        )
        self.points: Float = keypoints[..., :2].astype(np.float64)
        self.labels: NDArray[np.float32] = keypoints[..., 2]
        self.visible: Float = np.ones(len(self.boxes))

    def scale(self, factor: Float, start: Int, offset: Int) -> None:
        """Subtracts `start`, multiplies by `factor` and subtracts `offset`, all (M, 2)."""
        self.boxes, self.points = (
            (points - start[:, None]) * factor[:, None] - offset[:, None]
            for points in (self.boxes, self.points)
        )

    def clip(self, low: NDArray[np.number], high: NDArray[np.number]) -> None:
        """Clips boxes to x and y from `low` to `high`, (M, 2) or (2,)."""
        low, high = (np.broadcast_to(bound, (len(self.boxes), 2))[:, None] for bound in (low, high))
        before, self.boxes = self._areas(), self.boxes.clip(low, high)
        self.visible = self.visible * np.divide(
            self._areas(), before, out=np.zeros(len(before)), where=before > 0
        )

    def hide(self, canvas: Int) -> None:
        """Removes the label of keypoints outside an image of this width and height."""
        self.labels = np.where(
            ((self.points >= 0) & (self.points < canvas)).all(axis=2), self.labels, 0
        )

    def mirror(self, axis: int, where: Bool, length: NDArray[np.int64]) -> None:
        """Mirrors the objects at `where` along x (0) or y (1).

        `length` is the width or height of the images, (M,) or one for all.
        """
        length = np.broadcast_to(length, len(where))[where, None]
        # the two corners change places too, so that the smaller stays the first
        self.boxes[where, :, axis] = length - self.boxes[where, ::-1, axis]
        self.points[where, :, axis] = length - 1 - self.points[where, :, axis]

    def rename(self, mirrored: Bool, keypoints: Keypoints | None) -> None:
        """Swaps left and right keypoints of mirrored images."""
        if keypoints is not None and self.points.shape[1]:
            origin = np.argsort(keypoints.flipped)
            self.points = np.where(mirrored[:, None, None], self.points[:, origin], self.points)
            self.labels = np.where(mirrored[:, None], self.labels[:, origin], self.labels)

    def transform(self, matrices: Float) -> None:
        """Moves everything by the inverses of these (M, 2, 3) matrices."""
        # `affine_matrices` lead from the result to the source; points are rows, hence the transpose
        forward, offset = np.linalg.inv(matrices[:, :, :2]).swapaxes(1, 2), matrices[:, None, :, 2]

        corners = np.stack([self.boxes[:, [0, 1, 1, 0], 0], self.boxes[:, [0, 0, 1, 1], 1]], axis=2)
        corners, self.points = ((points - offset) @ forward for points in (corners, self.points))
        self.boxes = np.stack([corners.min(axis=1), corners.max(axis=1)], axis=1)

    def labeled_points(self) -> NDArray[np.float32] | None:
        """(M, K, 3) x, y, visibility."""
        points = np.concatenate([self.points, self.labels[..., None]], axis=2)
        return (
            np.where(self.labels[..., None] > 0, points, 0).astype(np.float32)
            if self._has_points
            else None
        )

    def _areas(self) -> Float:
        sides: Float = self.boxes[:, 1] - self.boxes[:, 0]
        return sides.prod(axis=1)
