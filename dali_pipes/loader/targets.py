"""Targets other than one class for each image: several classes, and the columns of the table."""

from dataclasses import replace

import torch
from torch import Tensor

from dali_pipes.backends.base import Batch
from dali_pipes.data.manifest import Manifest


class TargetLookup:
    """Turns lists of class numbers into multi-hot labels, and adds the manifest's columns, looked up by id on the batch's device.

    A batch of one class each and without columns is returned unchanged.
    """

    def __init__(self, manifest: Manifest):
        self._classes = len(manifest.classes) if manifest.task == "multilabel" else None
        self._columns = {name: torch.from_numpy(values) for name, values in manifest.columns.items()}

    def __call__(self, batch: Batch) -> Batch:
        if self._classes is not None:
            batch = replace(batch, labels=multi_hot(batch.labels, self._classes))
        if not self._columns:
            return batch
        self._columns = {name: values.to(batch.ids.device) for name, values in self._columns.items()}  # copied once
        return replace(batch, columns={name: values[batch.ids] for name, values in self._columns.items()})


def multi_hot(numbers: Tensor, num_classes: int) -> Tensor:
    """(N, num_classes) float32, 1 for the classes of each row.

    Args:
        numbers: (N, L) int64 class numbers, filled up with -1.
    """
    ones = torch.zeros(len(numbers), num_classes + 1, device=numbers.device)
    ones.scatter_(1, numbers.where(numbers >= 0, num_classes), 1.0)
    return ones[:, :num_classes].contiguous()
