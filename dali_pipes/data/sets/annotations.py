"""Which samples have the same objects, or the same mask: `sign_objects`, `sign_masks`,
`sign_mask_bytes`.

A signature is a number; samples of different signatures differ.
"""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.reader import Extent, Reader

_BLOCK = 100_000  # samples whose objects are in memory at once


def sign_objects(
    images: ImageTable, ids: NDArray[np.int64], with_labels: bool
) -> NDArray[np.int64]:
    """(N,) a number for the boxes of each sample, or for its boxes with their labels, in whatever
    order they are.
    """
    signed: list[int] = []
    for start in range(0, len(ids), _BLOCK):
        objects = images.take_objects(ids[start : start + _BLOCK])
        assert objects is not None
        rows = np.column_stack(
            [objects.images, objects.boxes, objects.labels if with_labels else 0 * objects.labels]
        )
        rows = rows[np.lexsort(rows.T[::-1])]
        ends = np.append(0, objects.counts.cumsum()).tolist()
        # without the first column, which is the image
        signed += [hash(rows[first:end, 1:].tobytes()) for first, end in pairwise(ends)]
    return np.array(signed, np.int64)


def sign_masks(images: ImageTable, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) a number for the mask of each sample, which is that of its place."""
    extents = map(images.mask_extent, ids.tolist())
    return np.array([_sign_place(extent) for extent in extents], np.int64)


def sign_mask_bytes(images: ImageTable, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) a number for the mask of each sample, which is the same for masks of the same bytes.

    In a store, where each mask is a request, it is that of their length alone.
    """
    extents = map(images.mask_extent, ids.tolist())
    if images.is_fetched:
        return np.array([extent.length if extent else -1 for extent in extents], np.int64)
    reader = Reader()
    try:
        return np.array([_sign_bytes(reader, extent) for extent in extents], np.int64)
    finally:
        reader.close()


def _sign_place(extent: Extent | None) -> int:
    return hash((extent.file, extent.offset) if extent else None)


def _sign_bytes(reader: Reader, extent: Extent | None) -> int:
    try:
        return hash(reader.read(extent).tobytes() if extent else None)
    except OSError:  # `mask_problem` reports it
        return _sign_place(extent)
