"""`in_worker` lets a data set believe that it runs in a worker of a DataLoader."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data._utils import worker


@contextmanager
def in_worker(dataset: Any, count: int, number: int = -1) -> Iterator[None]:
    """A block in which `get_worker_info` tells of one of some workers, by default of the last; with
    a count of 0, of none.
    """
    if not count:
        yield
        return
    before = worker._worker_info
    info = worker.WorkerInfo(
        id=number % count,
        num_workers=count,
        seed=torch.initial_seed() + number % count,
        dataset=dataset,
    )
    worker._worker_info = info
    try:
        yield
    finally:
        worker._worker_info = before
