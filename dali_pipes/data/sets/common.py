"""Images that are in two sets: `find_common`."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dali_pipes.data.doubts import doubt
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.omissions import Omission
from dali_pipes.data.sets.same_images import without_turns

_TEXT = pa.large_binary()  # as a manifest has paths


def find_common(train: ImageTable, val: ImageTable) -> Omission | None:
    """The images of validation that are also trained on: the same file, the same member of a shard,
    or the same bytes where those of both were read (verify="full"); None: there are none.
    """
    is_common = np.zeros(len(val), bool)
    turns = any(map(_has_turns, (train, val)))
    # as they are written, and without links to folders
    for roots in dict.fromkeys(zip(_roots(train), _roots(val), strict=True)):
        nearest = min(roots, key=len)
        if turns or all(root.startswith(nearest) for root in roots):
            nearest = "" if turns else nearest
            is_common |= _are_in(_places(val, roots[1], nearest), _places(train, roots[0], nearest))
    if not any(images.rows.all_empty("content") for images in (train, val)):
        contents, others = (images.rows.column("content") for images in (val, train))
        is_common |= _are_in(contents, others) & (pc.binary_length(contents).to_numpy() > 0)

    ids = np.flatnonzero(is_common)
    if not ids.size:
        return None
    how = "all of them" if len(ids) == len(val) else f"of {len(val):,}"
    what = (
        f"validation images are also trained on ({how}), so that what is measured on them says "
        "nothing of new images; give other images, or validation=split:0.1"
    )
    return doubt(what, map(val.relative_name, ids.tolist()), len(ids))


def _are_in(values: pa.ChunkedArray, others: pa.ChunkedArray) -> NDArray[np.bool_]:
    """(n,) which values are among the others too. Of what is in both there is little."""
    both = pc.unique(others.filter(pc.is_in(others, value_set=values)))
    return pc.is_in(values, value_set=both).to_numpy()


def _roots(images: ImageTable) -> list[str]:
    """The root as it is written, and without links to folders."""
    root = os.fspath(images.root)
    real = root if "://" in root else os.path.realpath(root)
    return [os.path.join(each, "") for each in (root, real)]


def _has_turns(images: ImageTable) -> bool:
    """Whether a path leads out of a folder again, as ../images/a.jpg does."""
    if images.facts.folders or not images.whole_files:
        return False  # names below a folder do not, and there may be many
    return bool(pc.any(pc.match_substring(images.rows.column("path"), b"../")).as_py())


def _places(images: ImageTable, root: str, nearest: str) -> pa.ChunkedArray:
    """Where each image is, from a folder on that is in the path of the root; "": the whole path."""
    path = images.rows.column("path")
    if start := root.removeprefix(nearest):
        path = pc.binary_join_element_wise(_text(os.fsencode(start)), path, _text(b""))
    path = without_turns(path)
    if images.rows.all_empty("member"):
        return path
    offset = images.rows.column("offset").cast(pa.large_string()).cast(_TEXT)
    member = images.rows.column("member")
    return pc.binary_join_element_wise(path, member, offset, _text(b"\0"))


def _text(value: bytes) -> pa.Scalar:
    return pa.scalar(value, _TEXT)
