"""The fingerprint of a manifest: equal for equal images, labels and columns, however it was made and wherever they lie."""

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_pipes.data.labels import is_numeric, task_of
from dali_pipes.data.objects import TARGET
from dali_pipes.data.table.samples import Samples
from dali_pipes.data.table.schema import further_columns

_VALUES = 1 << 22  # at once
_OF_THE_STORAGE = {TARGET + name for name in ("mask_offset", "mask_bytes", "dropped")}  # where they lie, and what was left out


class _Part(NamedTuple):
    """An array that is made block by block."""

    dtype: str
    shape: tuple[int, ...]
    blocks: Iterator[NDArray[Any]]


def digest(classes: list[str], samples: Samples) -> str:
    """SHA-256 over classes, names, labels, sizes, own columns and targets."""
    found = hashlib.sha256(json.dumps(classes).encode())
    members = [] if samples.all_empty("member") else [_offsets(samples, "member"), _text(samples, "member").blocks]
    sizes = _blocks(samples, lambda ids: np.stack([samples[name].numbers(ids) for name in ("height", "width")], 1).astype(np.int64))
    for block in chain(_offsets(samples, "path"), _text(samples, "path").blocks, *members, labels(samples).blocks, sizes):
        found.update(block.tobytes())
    own = {} if task_of(samples.whole["label"].type) == "classification" else {"label": [labels(samples)]}
    own |= {name: _content(samples, name) for name in further_columns(samples.whole) if name not in _OF_THE_STORAGE}
    for name, parts in own.items():
        for part in parts:
            found.update(json.dumps([name, part.dtype, part.shape]).encode())
            for block in part.blocks:
                found.update(block.tobytes())
    return found.hexdigest()


def labels(samples: Samples) -> _Part:
    """Class numbers as int64, those of several classes in rows filled up with -1; numbers to predict as they are."""
    kind = samples.whole["label"].type
    if task_of(kind) == "multilabel":
        longest = max((int(samples["label"].lengths(ids).max()) for ids in samples.blocks()), default=0)

        def rows(ids: NDArray[np.int64]) -> NDArray[np.int64]:
            values = samples["label"].matrix(ids, fill=-1).astype(np.int64)
            return np.pad(values, ((0, 0), (0, longest - values.shape[1])), constant_values=-1)

        return _Part("int64", (len(samples), longest), _blocks(samples, rows))
    if task_of(kind) == "classification":
        return _Part("int64", (len(samples),), _blocks(samples, lambda ids: samples["label"].numbers(ids).astype(np.int64)))
    return _numbers(samples, "label")


def _content(samples: Samples, name: str) -> list[_Part]:
    """What distinguishes a column from another: its numbers, or of texts and lists the length of each, and all values."""
    if is_numeric(samples.whole[name].type):
        return [_numbers(samples, name)]
    lengths = _Part("int64", (len(samples),), _blocks(samples, lambda ids: samples[name].lengths(ids)))
    return [lengths, _text(samples, name)]


def _numbers(samples: Samples, name: str) -> _Part:
    none = samples[name].numbers(np.empty(0, np.int64))
    return _Part(str(none.dtype), (len(samples), *none.shape[1:]), _blocks(samples, lambda ids: samples[name].numbers(ids)))


def _text(samples: Samples, name: str) -> _Part:
    dtype = str(samples[name].joined(np.empty(0, np.int64)).dtype)
    total = sum(int(samples[name].lengths(ids).sum()) for ids in samples.blocks())
    return _Part(dtype, (total,), (samples[name].joined(ids) for ids in _short(samples, name)))


def _short(samples: Samples, name: str) -> Iterator[NDArray[np.int64]]:
    """The blocks, divided so that the texts or lists of each have few values."""
    for ids in samples.blocks():
        parts = samples[name].lengths(ids).cumsum() // _VALUES
        yield from np.split(ids, np.flatnonzero(np.diff(parts)) + 1)


def _offsets(samples: Samples, name: str) -> Iterator[NDArray[np.int64]]:
    """Where each text begins if all stand one after the other, and where the last one ends."""
    end = np.zeros(1, np.int64)
    yield end
    for ids in samples.blocks():
        ends = end[-1] + samples[name].lengths(ids).cumsum()
        yield ends
        end = ends


def _blocks(samples: Samples, take: Callable[[NDArray[np.int64]], NDArray[Any]]) -> Iterator[NDArray[Any]]:
    return (take(ids) for ids in samples.blocks())
