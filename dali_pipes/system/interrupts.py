"""Ctrl-C, and every other signal that a program answers, at a moment when nothing may be given up
half-way.
"""

# Of C: the functions of `signal` make an enumeration's member of every number, which costs ten
# times as much as all the rest here
import _signal  # type: ignore[import-not-found]
import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_SIGNALS = tuple(map(int, signal.valid_signals()))


@contextlib.contextmanager
def delayed_signals() -> Iterator[None]:
    """The handlers of signals run at the end of this block, so that none of them raises an
    exception within it.

    A signal that comes once more, as a second Ctrl-C does, is handled at once: what is begun or
    ended may hang. Handlers run in the main thread, so elsewhere nothing is to be done. Those that
    are not Python's are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    delay = _Delay()
    try:
        delay.begin()
        yield
    finally:
        # at once: what comes from here on reaches the program's handler, whether that is back
        # already or not
        delay.over = True
        try:
            delay.end()
        except BaseException:  # another signal, maybe before all handlers are back
            delay.end()
            raise


def interrupt_behind(error: BaseException, handled: BaseException | None) -> BaseException | None:
    """What ends a program, such as KeyboardInterrupt, where it came out as an error of a library
    that it met half-way.

    Python's own locks do so: interrupted while it waits, a Condition says "release unlocked lock".

    Args:
        handled: what was being handled already when the library was called; it is behind every
            error since.
    """
    behind = error.__context__
    while behind is not None and behind is not handled:
        if not isinstance(behind, Exception) and not isinstance(behind, GeneratorExit):
            return behind
        behind = behind.__context__
    return None


class _Delay:
    """The program's handlers, and which signals wait for them.

    Attributes:
        over: whether signals are passed on at once.
    """

    def __init__(self) -> None:
        handlers: dict[int, Any] = {each: _signal.getsignal(each) for each in _SIGNALS}
        self._handlers = {
            number: handler for number, handler in handlers.items() if callable(handler)
        }
        self._received: dict[int, Any] = {}  # by signal the frame that it came in
        self.over = False

    def begin(self) -> None:
        for number in self._handlers:
            _signal.signal(number, self._receive)

    def end(self) -> None:
        """Harmless when called twice."""
        for number in self._handlers:
            self._give_back(number)
        self._handle()

    def _receive(self, number: int, frame: Any) -> None:
        if not self.over and number not in self._received:
            self._received[number] = frame
            return
        self.over = True
        self._give_back(number)  # `end` may have been interrupted before it did
        self._received[number] = frame
        self._handle()

    def _give_back(self, number: int) -> None:
        # else the program has set another one meanwhile
        if _signal.getsignal(number) == self._receive:
            _signal.signal(number, self._handlers[number])

    def _handle(self) -> None:
        """Calls all handlers that wait, also where one raises."""
        if not self._received:
            return
        number, frame = self._received.popitem()
        try:
            self._handlers[number](number, frame)
        finally:
            self._handle()
