"""What a loader has waited for and fetched: `loader.stats()`.

A loader makes each batch within `StatsRecorder.waiting()`, and `stats` returns the sums.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dali_pipes.data.shards import traffic
from dali_pipes.loader.fetching import Fetcher


class LoaderStats(NamedTuple):
    """What a loader has waited for and fetched so far.

    Attributes:
        wait_s: seconds inside `next()`.
        fetch_wait_s: how much of `wait_s`, at most, was the wait for shards: the readers' waiting
            in that time. The rest is preparation.
        fetched, fetched_bytes: shards, or row groups, that this process and its workers copied into
            the local cache.
        found: how often one was opened that was in the cache already.
        retries: requests to the object store that were sent again.
        window: with `sampling="windows"`, how many shards of the present and the next windows are
            in the cache, and how many there are.
    """

    wait_s: float
    fetch_wait_s: float
    fetched: float
    fetched_bytes: float
    found: float
    retries: float
    window: tuple[int, int]


class StatsRecorder:
    """Records how long a loader waits, and counts from its start what is fetched.

    Args:
        fetcher: fetches the loader's shards; None if they are not copied before they are read.
    """

    def __init__(self, fetcher: Fetcher | None):
        self._fetcher = fetcher
        self._wait_s = self._fetch_wait_s = 0.0
        self._traffic_at_start = traffic.current()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Makes a `with` block whose time is waiting, also if it ends with an error."""
        start, before = time.monotonic(), self._readers_waited_s()
        try:
            yield
        finally:
            waited = time.monotonic() - start
            self._wait_s += waited
            # several readers wait at the same time, so their sum can be more than this wait
            self._fetch_wait_s += min(waited, self._readers_waited_s() - before)

    def _readers_waited_s(self) -> float:
        return traffic.current().waited_s if self._fetcher else 0.0

    def stats(self) -> LoaderStats:
        fetched = traffic.current().since(self._traffic_at_start)
        window = self._fetcher.progress if self._fetcher else (0, 0)
        return LoaderStats(self._wait_s, self._fetch_wait_s, *fetched[:4], window)
