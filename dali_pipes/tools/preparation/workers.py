"""Work on all cores, with the results in order and only a few of them in memory."""

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

_AHEAD = 4  # chunks per core
_PR_SET_PDEATHSIG = 1
_work: Callable[[int], Any]


def in_order(work: Callable[[int], T], numbers: range, chunk: int = 8) -> Iterator[T]:
    """`work` of every number, in forked processes, which inherit its closure.

    Raises:
        PreparationError: a process was killed.
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
            "a worker process was killed, perhaps because memory ran out; start again, and it continues from here"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(work: Callable[[int], Any]) -> None:
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # if the parent is killed, this process ends as well


def _chunk(numbers: range) -> list[Any]:
    return [_work(number) for number in numbers]
