"""Images that are in two sets: `find_common`."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.doubts import doubt
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.omissions import Omission

_TEXT = pa.large_binary()  # as a manifest has paths


def find_common(train: ImageTable, val: ImageTable) -> Omission | None:
    """The images of validation that are also trained on: the same file, or the same member of a
    shard; None: there are none.
    """
    roots = [os.path.join(os.fspath(images.root), "") for images in (train, val)]
    if not len(val) or not (roots[0].startswith(roots[1]) or roots[1].startswith(roots[0])):
        return None

    nearest = min(roots, key=len)
    places, others = (_places(images, nearest) for images in (val, train))
    # validation has fewer, and of the hits there are few
    hits = pc.unique(others.filter(pc.is_in(others, value_set=places)))
    ids = np.flatnonzero(pc.is_in(places, value_set=hits).to_numpy())
    if not ids.size:
        return None
    how = "all of them" if len(ids) == len(val) else f"of {len(val):,}"
    what = (
        f"validation images are also trained on ({how}), so that what is measured on them says "
        "nothing of new images; give other images, or validation=split:0.1"
    )
    return doubt(what, map(val.relative_name, ids.tolist()), len(ids))


def _places(images: ImageTable, root: str) -> pa.ChunkedArray:
    """Where each image is, from this root on, which begins that of the images."""
    start = os.path.join(os.fspath(images.root), "").removeprefix(root)
    path = images.samples.column("path")
    if start:
        path = pc.binary_join_element_wise(_text(os.fsencode(start)), path, _text(b""))
    if images.samples.all_empty("member"):
        return path
    offset = images.samples.column("offset").cast(pa.large_string()).cast(_TEXT)
    member = images.samples.column("member")
    return pc.binary_join_element_wise(path, member, offset, _text(b"\0"))


def _text(value: bytes) -> pa.Scalar:
    return pa.scalar(value, _TEXT)
