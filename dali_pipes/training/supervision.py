"""What watches a run from outside: a file whose time shows that it makes progress, and the signals
that ask it to stop. Both are context managers around the training loop.
"""

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeVar

T = TypeVar("T")
# SLURM sends SIGUSR2 before a job's time limit, and a terminal sends SIGINT at Ctrl-C
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


class Heartbeat:
    """A file that exists within the `with` block, and whose time is that of the last beat.

    Args:
        path: the file; None: nothing is written, as on every rank but the first.
    """

    def __init__(self, path: str | None):
        self._path = Path(path) if path else None

    def beat(self) -> None:
        """Touches the file, which takes a few microseconds."""
        if self._path:
            os.utime(self._path)

    def watch(self, batches: Iterable[T]) -> Iterator[T]:
        """Yields the same batches, and beats once for each."""
        for batch in batches:
            self.beat()
            yield batch

    def __enter__(self) -> Self:
        """Raises an OSError that names the file if it cannot be written."""
        if self._path:
            self._path.touch()
        return self

    def __exit__(self, *_: object) -> None:
        if self._path:
            self._path.unlink(missing_ok=True)


class Interrupt:
    """Records signals within the `with` block, so that a step can be finished and saved.

    These are the signals that clusters send before they take a machine away, and Ctrl-C. A second
    Ctrl-C raises KeyboardInterrupt.

    Attributes:
        signal: the first one that came, or None.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def pass_on(self) -> None:
        """Calls the previous signal handler, if it is a function: SLURM's launcher requeues the job
        in it.
        """
        before = self._before.get(self.signal) if self.signal else None
        # Python's own handler would raise KeyboardInterrupt
        if callable(before) and before is not signal.default_int_handler:
            before(self.signal, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == self.signal == signal.SIGINT:  # a second Ctrl-C
            raise KeyboardInterrupt
        self.signal = self.signal or signal.Signals(number)

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
