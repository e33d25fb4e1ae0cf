"""Labels and further targets, joined to the images of a batch by their ids."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dali_pipes.backends.base import Batch, DecodedBatch
from dali_pipes.data.manifest import Manifest


def join(batch: DecodedBatch, ids: NDArray[np.int64], manifest: Manifest) -> Batch:
    """Adds labels and the columns of numbers, on the batch's device; lists of class numbers become multi-hot.

    Args:
        ids: those of the batch, on the CPU.
    """

    def there(values: NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(batch.images.device, non_blocking=True)

    labels = there(manifest.take_labels(ids))
    if manifest.task == "multilabel":
        labels = multi_hot(labels, len(manifest.classes))
    ids_there = batch.ids.to(batch.images.device, non_blocking=True)
    return Batch(batch.images, labels, ids_there, {name: there(values) for name, values in manifest.take_columns(ids).items()})


def multi_hot(numbers: Tensor, num_classes: int) -> Tensor:
    """(N, num_classes) float32, 1 for the classes of each row.

    Args:
        numbers: (N, L) int64 class numbers, filled up with -1.
    """
    ones = torch.zeros(len(numbers), num_classes + 1, dtype=torch.float32, device=numbers.device)
    ones.scatter_(1, numbers.where(numbers >= 0, num_classes), 1.0)
    return ones[:, :num_classes].contiguous()
