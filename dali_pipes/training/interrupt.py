"""Requests to stop: SIGTERM, SIGUSR1 or SIGUSR2, as clusters send before they take a machine away, and Ctrl-C."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


class Interrupt:
    """Within the `with` block these signals are only recorded, so that a step can be finished and saved.

    A second Ctrl-C is a KeyboardInterrupt.

    Attributes:
        signal: the first that came, or None.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def pass_on(self) -> None:
        """Calls the previous signal handler, if it is a function: SLURM's launcher requeues the job in it."""
        before = self._before.get(self.signal) if self.signal else None
        if callable(before) and before is not signal.default_int_handler:
            before(self.signal, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or signal.Signals(number)

    def __enter__(self) -> Self:
        self._before = {each: signal.signal(each, self._note) for each in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for each, before in self._before.items():
            signal.signal(each, before)
