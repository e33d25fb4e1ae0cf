"""Which samples are the same image (`number_files`, `number_contents`), and which of them have the
same objects or the same mask (`sign_objects`, `sign_masks`, `sign_mask_bytes`).

A signature is a number; samples of different signatures differ.
"""

import os
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.reader import Extent, Reader


def number_files(images: ImageTable) -> NDArray[np.int64]:
    """Numbers the images, (n,): samples of the same file, or of the same part of a shard, have the
    same number.

    Where no image is there twice, each sample has its id.
    """
    numbers = _encode(without_turns(images.rows.column("path")))
    if not images.whole_files:
        # a member is a part of a shard
        members = _encode(images.rows.column("offset"))
        pairs = numbers * (members.max(initial=0) + 1) + members
        numbers = np.unique(pairs, return_inverse=True)[1]
    if not numbers.size or len(np.unique(numbers)) == len(numbers):
        return np.arange(len(numbers))
    return numbers


def without_turns(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """The paths without the parts that lead back, so that a file has one path: a/../b is b."""
    turns = pc.match_substring(paths, b"../")
    if not pc.any(turns).as_py():
        return paths
    plain = [os.path.normpath(path) for path in paths.filter(turns).to_pylist()]
    mask = turns.combine_chunks()
    changed = pc.replace_with_mask(paths.combine_chunks(), mask, pa.array(plain, paths.type))
    return pa.chunked_array([changed])


def number_contents(images: ImageTable) -> NDArray[np.int64] | None:
    """Numbers the images, (n,): samples of the same bytes have the same number. None: their bytes
    were not all read (verify="full").
    """
    if images.rows.all_empty("content"):
        return None
    contents = images.rows.column("content")
    if pc.any(pc.equal(pc.binary_length(contents), 0)).as_py():
        return None
    return _encode(contents)


def _encode(column: pa.ChunkedArray) -> NDArray[np.int64]:
    encoded = pc.dictionary_encode(column).combine_chunks()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


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
