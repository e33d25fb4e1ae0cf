"""Looks into a batch of any structure: how many samples it holds, and which arrays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map


def count_items(batch: Any, batch_size: int | None = None) -> int:
    """Returns how many samples a batch of any structure holds; 1 if nothing in it has a length.

    If the DataLoader's batch_size is among the lengths found in the batch, it is that number. The
    last batch of an epoch, and a batch that the program makes itself, have the length of the first
    array or list of samples.
    """
    lengths = list(_lengths(batch))
    if batch_size and batch_size > 1 and batch_size in lengths:
        return batch_size
    return lengths[0] if lengths else 1


def _lengths(batch: Any) -> Iterator[int]:
    """Yields the lengths in a batch that may be its number of samples, the outermost first."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        if batch.ndim:
            yield len(batch)
        return
    if isinstance(batch, (list, tuple)) and _are_samples(batch):
        yield len(batch)
    for part in _parts(batch):
        yield from _lengths(part)


def _are_samples(batch: Sequence[Any]) -> bool:
    """Whether each element is one sample, such as an image of a detection batch, rather than the
    images, the labels and so on of all samples.
    """
    if len({type(part) for part in batch}) != 1:
        return False
    if not isinstance(batch[0], (torch.Tensor, np.ndarray)):
        return isinstance(batch[0], (Mapping, str, bytes, int, float))

    # a number, or an image (channels, height, width)
    is_one = all(part.ndim in (0, 3) for part in batch)
    # arrays of several sizes are fields; so are two of one size, such as inputs and targets
    return is_one or (len(batch) > 2 and len({tuple(part.shape) for part in batch}) == 1)


def arrays_of(batch: Any) -> list[Any]:
    """Returns all arrays in a batch of any structure."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return [batch]
    return [array for part in _parts(batch) for array in arrays_of(part)]


def _parts(batch: Any) -> list[Any]:
    """Returns what a container holds, or the fields of an object."""
    if isinstance(batch, Mapping):
        return list(batch.values())
    return list(batch) if isinstance(batch, (list, tuple)) else _fields(batch)


def _fields(batch: Any) -> list[Any]:
    """Returns the fields of a dataclass, or of another object of a user's own class."""
    if isinstance(batch, (str, bytes, type(None), int, float)):
        return []
    if is_dataclass(batch):
        return [getattr(batch, field.name) for field in fields(batch)]
    return list(vars(batch).values()) if hasattr(batch, "__dict__") else []


def put_on_device(batch: Any) -> Any:
    if not torch.cuda.is_available():
        return batch
    return tree_map(lambda part: part.cuda() if isinstance(part, torch.Tensor) else part, batch)
