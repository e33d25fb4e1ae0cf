"""Ctrl-C at a moment when nothing may be given up half-way."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Ctrl-C in this block takes effect at its end.

    Python's handlers run in the main thread, so elsewhere nothing is to be done. A program's own handler is called with what the
    signal brought; one that is not Python's is left alone.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return

    received = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[-1])
