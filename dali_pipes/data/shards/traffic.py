"""Counts what this process and the worker processes of its loaders fetch.

All of them add to one shared array (`add`); `current` returns the sums.
"""

import multiprocessing
import os
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Traffic(NamedTuple):
    """The counts, summed over all processes.

    Attributes:
        fetched: copies of shards and row groups that were made.
        fetched_bytes: their size.
        hits: times that a shard was opened and its copy was there already.
        retries: requests that were sent again.
        waited_s: how long readers waited for copies, all threads together.
    """

    fetched: float = 0
    fetched_bytes: float = 0
    hits: float = 0
    retries: float = 0
    waited_s: float = 0

    def since(self, before: "Traffic") -> "Traffic":
        return Traffic(*(now - then for now, then in zip(self, before, strict=True)))


_PROCESSES = 64  # with a row of their own; more share rows, and may lose a count
_totals: Any = None
_lock = threading.Lock()


def totals() -> Any:
    """The shared array that all of these processes add to.

    It is made when it is first asked for, which must be before workers are started.
    """
    global _totals
    if _totals is None:
        _totals = multiprocessing.RawArray("d", _PROCESSES * len(Traffic._fields))
    return _totals


def share(shared: Any) -> None:
    """Adds from now on to the array of the process that started this one."""
    global _totals
    _totals = shared


def add(**amounts: float) -> None:
    # each process adds to its own row, so only its threads need the lock
    row = _rows()[os.getpid() % _PROCESSES]
    with _lock:
        for name, amount in amounts.items():
            row[Traffic._fields.index(name)] += amount


def current() -> Traffic:
    return Traffic(*_rows().sum(axis=0).tolist())


def _rows() -> NDArray[np.float64]:
    return np.frombuffer(totals()).reshape(_PROCESSES, -1)


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)  # another thread may have held it
