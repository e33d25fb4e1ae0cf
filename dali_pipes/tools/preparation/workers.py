"""Work on all cores, with the results in order and no more of them in memory than are soon wanted."""

import ctypes
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from dali_pipes.errors import PreparationError
from dali_pipes.system.cpus import available_cpus

T = TypeVar("T")

_AHEAD = 4  # chunks for each core
_PR_SET_PDEATHSIG = 1
_work: Callable[[int], Any]


def in_order(work: Callable[[int], T], numbers: range, chunk: int = 8) -> Iterator[T]:
    """`work` of every number, in processes that are forked here and so know what it knows.

    Raises:
        PreparationError: a process was ended from outside.
    """
    cores = available_cpus()
    pool = ProcessPoolExecutor(cores, multiprocessing.get_context("fork"), initializer=_begin, initargs=(work,))
    pending: deque[Future[list[T]]] = deque()
    try:
        for start in range(numbers.start, numbers.stop, chunk):
            pending.append(pool.submit(_chunk, range(start, min(start + chunk, numbers.stop))))
            if len(pending) > _AHEAD * cores:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()
    except BrokenProcessPool:
        raise PreparationError(
            "a worker process was ended from outside, perhaps for want of memory; start again, and it goes on from here"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(work: Callable[[int], Any]) -> None:
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that leads
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # and if that is killed, this one ends as well


def _chunk(numbers: range) -> list[Any]:
    return [_work(number) for number in numbers]
