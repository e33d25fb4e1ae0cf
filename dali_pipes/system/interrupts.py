"""Delays Ctrl-C, and every other signal that a program answers, while something must not be given
up half-way.

`delayed_signals` is a block at whose end the handlers run. `interrupt_behind` finds an interrupt
that a library has turned into an error of its own.
"""

# the module in C: the functions of `signal` make an enumeration's member of every number, which
# costs ten times as much as all the rest here
import _signal  # type: ignore[import-not-found]
import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_SIGNALS = tuple(map(int, signal.valid_signals()))


@contextlib.contextmanager
def delayed_signals() -> Iterator[None]:
    """Makes the handlers of signals run at the end of this block, so that none of them raises an
    exception within it.

    A signal that comes a second time, as a second Ctrl-C does, is handled at once, since the block
    may hang. Python runs handlers in the main thread, so in other threads the block does nothing.
    Handlers that are not Python functions are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    delay = _Delay()
    try:
        delay.begin()
        yield
    finally:
        # first of all: a signal from here on reaches the program's handler, whether that is put
        # back already or not
        delay.passes_on = True
        try:
            delay.end()
        except BaseException:  # another signal, maybe before all handlers are put back
            delay.end()
            raise


def interrupt_behind(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """Returns the exception that ends a program, such as KeyboardInterrupt, if `error` is what a
    library has made of it; else None.

    Python's own locks do so: a Condition that is interrupted while it waits says "release unlocked
    lock".

    Args:
        handled: the exception that was being handled already when the library was called; it is
            behind every error since then.
    """
    behind = error.__context__
    while behind is not None and behind is not handled:
        if not isinstance(behind, Exception) and not isinstance(behind, GeneratorExit):
            return behind
        behind = behind.__context__
    return None


class _Delay:
    """The program's handlers, and the signals that wait for them.

    Attributes:
        passes_on: whether signals go to their handlers at once.
    """

    def __init__(self) -> None:
        handlers: dict[int, Any] = {number: _signal.getsignal(number) for number in _SIGNALS}
        self._handlers = {
            number: handler for number, handler in handlers.items() if callable(handler)
        }
        self._received: dict[int, Any] = {}  # the frame that each signal came in, by its number
        self.passes_on = False

    def begin(self) -> None:
        for number in self._handlers:
            _signal.signal(number, self._receive)

    def end(self) -> None:
        """Puts the handlers back and runs those whose signals came; may be called twice."""
        for number in self._handlers:
            self._restore(number)
        self._handle()

    def _receive(self, number: int, frame: Any) -> None:
        if not self.passes_on and number not in self._received:
            self._received[number] = frame
            return

        # a second signal of this kind, or one after the block
        self.passes_on = True
        self._restore(number)  # `end` may have been interrupted before it came to this one
        self._received[number] = frame
        self._handle()

    def _restore(self, number: int) -> None:
        # otherwise the program has set another handler meanwhile, which stays
        if _signal.getsignal(number) == self._receive:
            _signal.signal(number, self._handlers[number])

    def _handle(self) -> None:
        """Calls all handlers whose signals came, also if one of them raises."""
        if not self._received:
            return
        number, frame = self._received.popitem()
        try:
            self._handlers[number](number, frame)
        finally:
            self._handle()
