"""Which samples are the same image: `number_files`, `number_contents`."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.image_table import ImageTable


def number_files(images: ImageTable) -> NDArray[np.int64]:
    """Numbers the images, (n,): samples of the same file, or of the same part of a shard, have the
    same number.

    Where no image is there twice, each sample has its id.
    """
    numbers = _encode(without_turns(images.samples.column("path")))
    if not images.whole_files:
        # a member is a part of a shard
        members = _encode(images.samples.column("offset"))
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
    if images.samples["content"].all_empty:
        return None
    contents = images.samples.column("content")
    if pc.any(pc.equal(pc.binary_length(contents), 0)).as_py():
        return None
    return _encode(contents)


def _encode(column: pa.ChunkedArray) -> NDArray[np.int64]:
    encoded = pc.dictionary_encode(column).combine_chunks()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
