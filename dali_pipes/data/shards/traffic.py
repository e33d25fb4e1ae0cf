"""What this process and the worker processes of its loaders fetch, added up."""

import multiprocessing
from typing import Any, NamedTuple


class Traffic(NamedTuple):
    """
    Attributes:
        fetched: copies of shards and row groups that were made.
        fetched_bytes: their size.
        found: times that a shard was opened whose copy was there already.
        retries: requests that were sent again.
        waited_s: how long readers waited for copies, all threads together.
    """

    fetched: float = 0
    fetched_bytes: float = 0
    found: float = 0
    retries: float = 0
    waited_s: float = 0

    def since(self, before: "Traffic") -> "Traffic":
        return Traffic(*(now - then for now, then in zip(self, before, strict=True)))


_totals: Any = None


def totals() -> Any:
    """The shared array that all of these processes add to; made when it is first asked for, which is before workers are started."""
    global _totals
    if _totals is None:
        _totals = multiprocessing.Array("d", len(Traffic._fields))
    return _totals


def use(shared: Any) -> None:
    """Adds to the array of the process that started this one."""
    global _totals
    _totals = shared


def add(**amounts: float) -> None:
    shared = totals()
    with shared.get_lock():
        for name, amount in amounts.items():
            shared[Traffic._fields.index(name)] += amount


def current() -> Traffic:
    return Traffic(*totals())


def waited_s() -> float:
    """As `current().waited_s`, for every batch."""
    return float(totals().get_obj()[Traffic._fields.index("waited_s")])
