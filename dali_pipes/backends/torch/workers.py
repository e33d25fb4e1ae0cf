"""What the workers of PyTorch's DataLoader need besides what PyTorch does: they leave signals to
the main process, and end early, which PyTorch itself leaves incomplete.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

from dali_pipes.system.workers import starting_workers

_ENDS_WITHIN_S = 5.0
_READS_WITHIN_S = 0.2
_CHUNK_BYTES = 1 << 16


def start_workers(loader: Any) -> Any:
    """Returns an iterator of a DataLoader whose `worker_init_fn` calls
    `leave_signals_to_the_main_process`, if it has workers.
    """
    with starting_workers(loader.multiprocessing_context):
        iterator = iter(loader)

    # PyTorch, and multiprocessing at exit, end workers by SIGTERM, which these do not heed
    for worker in getattr(iterator, "_workers", ()):
        worker._popen.terminate = worker._popen.kill
    return iterator


def end_workers(iterator: Any) -> None:
    """Ends the worker processes of a DataLoader's iterator, if it has any, and closes their files.

    They would end by themselves when the iterator is collected, which a traceback can delay for
    long. If memory is page-locked and workers are persistent, PyTorch registers every worker with
    atexit (torch/utils/data/dataloader.py, `_clean_up_worker`; issue 91252). Then a worker is never
    collected, and its two pipes stay open until the program ends.
    """
    if not hasattr(iterator, "_shutdown_workers"):
        return

    if iterator._shutdown:
        _join_workers(iterator)
        return

    with _readers_of([iterator._worker_result_queue, *iterator._index_queues]) as readers:
        iterator._shutdown_workers()
        _join_workers(iterator)
        for queue, reader in readers:
            _end_sender(queue, reader)


def _join_workers(iterator: Any) -> None:
    for worker in iterator._workers:
        # a worker that did not end by itself was terminated, but nobody has waited for it since
        worker.join(_ENDS_WITHIN_S)
        if not worker.is_alive() and hasattr(worker, "_popen"):
            # not worker.close(): at exit the registered function joins the worker once more, which
            # raises an error if the worker is closed
            worker._popen.close()


@contextmanager
def _readers_of(queues: list[Any]) -> Iterator[list[tuple[Any, int]]]:
    """Each queue and a descriptor of its reading end that stays open when the queue is closed."""
    readers = [(queue, os.dup(queue._reader.fileno())) for queue in queues]
    try:
        yield readers
    finally:
        for _, reader in readers:
            os.close(reader)


def _end_sender(queue: Any, reader: int) -> None:
    """Ends the thread by which this process sends to its workers through a queue, if there is one.

    It waits for ever in two cases, and keeps the queue's two descriptors open: the pipe is full and
    the worker that read it has ended, or a worker ended while it sent and so never gave the lock of
    the queue's writers back.
    """
    queue.cancel_join_thread()
    queue.close()
    sender = queue._thread
    if sender is None:
        return

    deadline = time.monotonic() + _ENDS_WITHIN_S
    sender.join(_READS_WITHIN_S)
    while sender.is_alive() and time.monotonic() < deadline:
        if wait([reader], _READS_WITHIN_S):
            os.read(reader, _CHUNK_BYTES)
        elif queue._wlock._semlock._is_zero():
            queue._wlock.release()
