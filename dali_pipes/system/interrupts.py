"""Ctrl-C, and every other signal that a program answers, at a moment when nothing may be given up half-way."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def delayed_signals() -> Iterator[None]:
    """The handlers of signals run at the end of this block, so that none of them raises an exception within it.

    A signal that comes once more, as a second Ctrl-C does, is handled at once: what is begun or ended may hang. Handlers run in the
    main thread, so elsewhere nothing is to be done. Those that are not Python's are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    handlers: dict[int, Any] = {each: signal.getsignal(each) for each in signal.valid_signals()}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    received: dict[int, Any] = {}  # by signal the frame that it came in

    def receive(number: int, frame: Any) -> None:
        if number not in received:
            received[number] = frame
            return
        del received[number]
        handlers[number](number, frame)

    for number in handlers:
        signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is receive:  # else the program has set another one meanwhile
                signal.signal(number, handler)
        _handle(handlers, received)


def _handle(handlers: dict[int, Any], received: dict[int, Any]) -> None:
    """Calls all of them, also where one raises."""
    if not received:
        return
    number, frame = received.popitem()
    try:
        handlers[number](number, frame)
    finally:
        _handle(handlers, received)
