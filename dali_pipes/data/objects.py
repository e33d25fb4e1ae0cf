"""What a manifest knows beyond an image's label: objects with boxes, keypoints and outlines, a mask, a text.

They are columns called "target:NAME", large lists of numbers of which an image has as many as it needs, or large strings:

    boxes          4 float32 an object: left, top, right, bottom in pixels of the image as stored, not turned by its EXIF tag
    box_labels     int64 class number of each object
    areas          float32 of each object, in pixels
    crowd          bool of each object: a group that is outlined as one, as COCO's iscrowd
    keypoints      3 float32 a keypoint, as many an object as `Keypoints.names`: x, y, and COCO's visibility 0, 1 or 2
    outlines       JSON of a list: COCO's segmentation of each object, polygons or run lengths
    mask           path of a mask, relative to the root; "" if it is a part of the image's shard, or there is none
    mask_offset    int64, where in the shard the mask begins
    mask_bytes     int64, how long it is there; 0: not there
    text           a text, such as a caption
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

TARGET = "target:"
TYPES: dict[str, pa.DataType] = {
    "boxes": pa.large_list(pa.float32()),
    "box_labels": pa.large_list(pa.int64()),
    "areas": pa.large_list(pa.float32()),
    "crowd": pa.large_list(pa.bool_()),
    "keypoints": pa.large_list(pa.float32()),
    "outlines": pa.large_string(),
    "mask": pa.large_string(),
    "mask_offset": pa.int64(),
    "mask_bytes": pa.int64(),
    "text": pa.large_string(),
}


class Keypoints(NamedTuple):
    """Which keypoints an object has.

    Attributes:
        names: such as "left_eye".
        flipped: the number of the keypoint that each is called once the image is flipped left to right.
    """

    names: list[str]
    flipped: list[int]


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of N images, those of each image one after the other; M in all.

    Attributes:
        counts: (N,) int64, how many each image has.
        boxes: (M, 4) float32 left, top, right, bottom in pixels.
        labels: (M,) int64 class numbers.
        areas: (M,) float32 in pixels; None: not known.
        crowd: (M,) bool; None: not known.
        keypoints: (M, K, 3) float32 x, y, visibility; None: there are none.
    """

    counts: NDArray[np.int64]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    areas: NDArray[np.float32] | None = None
    crowd: NDArray[np.bool_] | None = None
    keypoints: NDArray[np.float32] | None = None

    @property
    def images(self) -> NDArray[np.int64]:
        """(M,) the place of each object's image among the N."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def keep(self, chosen: NDArray[np.bool_]) -> Self:
        """Only the chosen objects, of the same images."""
        counts = np.bincount(self.images[chosen], minlength=len(self.counts)).astype(np.int64)
        values = [getattr(self, each.name) for each in fields(self)[1:]]
        kept: list[Any] = [None if each is None else each[chosen] for each in values]
        return type(self)(counts, *kept)
