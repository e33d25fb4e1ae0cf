"""Labels and further columns of the table, joined to the images of a batch by their ids."""

import numpy as np
import torch
from torch import Tensor

from dali_pipes.backends.base import Batch, DecodedBatch
from dali_pipes.data.manifest import Manifest


class TargetLookup:
    """Adds labels and columns of numbers, looked up by id on the batch's device; lists of class numbers become multi-hot."""

    def __init__(self, manifest: Manifest):
        self._classes = len(manifest.classes) if manifest.task == "multilabel" else None
        self._labels = torch.from_numpy(manifest.labels)
        numbers = {name: values for name, values in manifest.columns.items() if isinstance(values, np.ndarray)}
        self._columns = {name: torch.from_numpy(values) for name, values in numbers.items()}

    def __call__(self, batch: DecodedBatch) -> Batch:
        ids, device = batch.ids, batch.ids.device
        self._labels = self._labels.to(device)  # copied once
        self._columns = {name: values.to(device) for name, values in self._columns.items()}
        labels = self._labels[ids] if self._classes is None else multi_hot(self._labels[ids], self._classes)
        return Batch(batch.images, labels, ids, {name: values[ids] for name, values in self._columns.items()})


def multi_hot(numbers: Tensor, num_classes: int) -> Tensor:
    """(N, num_classes) float32, 1 for the classes of each row.

    Args:
        numbers: (N, L) int64 class numbers, filled up with -1.
    """
    ones = torch.zeros(len(numbers), num_classes + 1, device=numbers.device)
    ones.scatter_(1, numbers.where(numbers >= 0, num_classes), 1.0)
    return ones[:, :num_classes].contiguous()
