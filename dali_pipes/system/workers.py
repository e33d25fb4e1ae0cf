"""Does work in several processes, since threads would wait for the GIL. Results come in order, and
only a few of them are in memory.

All worker processes leave signals to the main process. A terminal, `timeout`, SLURM and systemd
send them to every process of a program, and the main process still needs its workers to finish a
step and to save.
"""

import ctypes
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from dali_pipes.errors import WorkerError

T = TypeVar("T")

_AHEAD = 4  # chunks that are in work, for each process
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h
# those that ask a program to end, or to save and be started again
_OF_MAIN = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_work: Callable[[Any], Any]


@contextmanager
def starting_workers(context: Any = None) -> Iterator[None]:
    """A block that starts processes which call `leave_signals_to_the_main_process`. A signal that
    reaches them earlier waits until then.

    Args:
        context: how multiprocessing starts them; None: as by default.
    """
    context = context or multiprocessing
    default = multiprocessing.get_all_start_methods()[0]
    if (context.get_start_method(allow_none=True) or default) != "fork":
        # it lets SIGINT and SIGTERM through when it has started
        resource_tracker.ensure_running()

    # processes inherit what is blocked, also those of other programs
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_MAIN)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_the_main_process(worker: int = 0) -> None:
    """Makes this worker process heed none of the signals that the main process answers.

    SIGKILL still ends it. A handler, and not SIG_IGN: programs that a worker starts would inherit
    that, and `terminate()` would not end them.
    """
    for number in _OF_MAIN:
        signal.signal(number, _heed_not)
        signal.siginterrupt(number, False)  # libraries in C need not expect an interrupted call
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_MAIN)


def _heed_not(number: int, frame: Any) -> None:
    pass


def map_in_order(
    work: Callable[[Any], T],
    items: Iterable[Any],
    processes: int,
    chunk: int = 1,
    patience_s: float | None = None,
) -> Iterator[T]:
    """Yields `work` of every item. It is done in forked processes, which inherit the closure of
    `work`; in this process if `processes` is less than two.

    Args:
        items: taken as they are needed.
        chunk: how many items a process takes at once.
        patience_s: how many seconds to wait for a result; None: for ever.

    Raises:
        WorkerError: a process was killed, or there is no result in that time.
    """
    if processes < 2:
        yield from map(work, items)
        return

    # forked, so that `work` need not be pickled
    pool = ProcessPoolExecutor(
        processes, multiprocessing.get_context("fork"), initializer=_begin, initargs=(work,)
    )
    pending: deque[Future[list[T]]] = deque()
    items = iter(items)

    # no more than a few chunks ahead: neither items nor results pile up
    try:
        while some := list(islice(items, chunk)):
            with starting_workers(pool._mp_context):
                pending.append(pool.submit(_chunk, some))
            if len(pending) > _AHEAD * processes:
                yield from pending.popleft().result(patience_s)
        while pending:
            yield from pending.popleft().result(patience_s)
    except TimeoutError:
        # a pool waits for its processes, so those that hang are killed; Python has a method for it
        # from 3.14 on only
        for process in list(pool._processes.values()):
            process.kill()
        raise WorkerError(f"a worker process has returned nothing in {patience_s} s") from None
    except BrokenProcessPool:
        why = "a worker process was killed, perhaps because memory ran out"
        raise WorkerError(f"{why}; start again") from None
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    leave_signals_to_the_main_process()
    # if the parent is killed, this process ends as well
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _chunk(items: list[Any]) -> list[Any]:
    return [_work(item) for item in items]
