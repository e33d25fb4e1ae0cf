"""The fingerprint of a manifest: equal for equal images, labels and columns, however the manifest
was made and wherever the images are.

A resumed run and `Manifest.verify` compare it with the one that was saved, so the order and the
bytes of what goes into it must stay as they are.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.labels.reader import task_of
from dali_pipes.data.objects import TARGET
from dali_pipes.data.own_columns import is_numeric
from dali_pipes.data.table.samples import Samples
from dali_pipes.data.table.schema import further_columns

Take = Callable[[NDArray[np.int64]], NDArray[Any]]  # rows of an array, by sample id

_VALUES = 1 << 22  # values of texts and lists that are in memory at once
# columns that say where targets are stored, or what was left out
_STORAGE_COLUMNS = {TARGET + name for name in ("mask_offset", "mask_bytes", "dropped")}


def digest(classes: list[str], samples: Samples, labels: Take, sizes: Take) -> str:
    """Returns the SHA-256, in hex, over classes, names, labels, sizes, own columns and targets."""
    sha = hashlib.sha256(json.dumps(classes).encode())
    task = task_of(samples.whole["label"].type)
    if task == "multilabel":
        labels = _pad_labels(samples, labels)

    # Names: first where each text begins, so that ab, c and a, bc differ, then all texts.
    names = ["path"] if samples.all_empty("member") else ["path", "member"]
    for blocks in chain.from_iterable(
        (_offsets(samples, name), _values(samples, name)) for name in names
    ):
        _add(sha, blocks)

    for take in (labels, sizes):
        _add(sha, map(take, samples.blocks()))

    # once more, with dtype and shape: bytes alone do not say how lists are divided into rows
    if task != "classification":
        _add_rows(sha, "label", samples, labels)

    for name in further_columns(samples.whole):
        if name not in _STORAGE_COLUMNS:
            _add_column(sha, name, samples)

    return sha.hexdigest()


def _add_column(sha: Any, name: str, samples: Samples) -> None:
    """Adds a column: its numbers, or the length of each text or list, and then all values."""
    if is_numeric(samples.whole[name].type):
        _add_rows(sha, name, samples, lambda ids: samples.numbers(name, ids))
        return

    _add_rows(sha, name, samples, lambda ids: samples.lengths(name, ids))
    total = sum(int(samples.lengths(name, ids).sum()) for ids in samples.blocks())
    _add(
        sha,
        _values(samples, name),
        name,
        str(samples.values(name, np.empty(0, np.int64))[0].dtype),
        (total,),
    )


def _add_rows(sha: Any, name: str, samples: Samples, take: Take) -> None:
    # an empty selection, which has the dtype and the shape of a row
    none = take(np.empty(0, np.int64))
    _add(sha, map(take, samples.blocks()), name, str(none.dtype), (len(samples), *none.shape[1:]))


def _add(sha: Any, blocks: Iterator[NDArray[Any]], *head: Any) -> None:
    """Adds an array that is made block by block, after its name, dtype and shape."""
    if head:
        sha.update(json.dumps(head).encode())
    for block in blocks:
        sha.update(block.tobytes())


def _pad_labels(samples: Samples, labels: Take) -> Take:
    """Returns labels of several classes in rows of one length, filled up with -1.

    A block is only as wide as its longest row, and the fingerprint must not depend on blocks.
    """
    longest = max((labels(ids).shape[1] for ids in samples.blocks()), default=0)

    def rows(ids: NDArray[np.int64]) -> NDArray[Any]:
        padded = labels(ids)
        return np.pad(padded, ((0, 0), (0, longest - padded.shape[1])), constant_values=-1)

    return rows


def _values(samples: Samples, name: str) -> Iterator[NDArray[Any]]:
    """Yields all texts or lists, one after the other, in blocks of few values."""
    for ids in samples.blocks():
        parts = samples.lengths(name, ids).cumsum() // _VALUES
        for some in np.split(ids, np.flatnonzero(np.diff(parts)) + 1):
            yield samples.values(name, some)[0]


def _offsets(samples: Samples, name: str) -> Iterator[NDArray[np.int64]]:
    """Yields where each text begins if all are joined, and where the last one ends."""
    end = np.zeros(1, np.int64)
    yield end
    for ids in samples.blocks():
        ends = end[-1] + samples.lengths(name, ids).cumsum()
        yield ends
        end = ends
