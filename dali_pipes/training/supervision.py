"""What supervises a run: a file that shows that it makes progress, and the signals that ask it to
stop.
"""

import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)


class Heartbeat:
    """Within the `with` block the file exists, and its time is that of the last beat.

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
        """The same batches, with one beat for each."""
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
    """Within the `with` block the signals that clusters send before they take a machine away, and
    Ctrl-C, are only recorded, so that a step can be finished and saved. A second Ctrl-C is a
    KeyboardInterrupt.

    Attributes:
        signal: the first that came, or None.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def pass_on(self) -> None:
        """Calls the previous signal handler, if it is a function: SLURM's launcher requeues the job
        in it.
        """
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

    def __exit__(self, *_: object) -> None:
        for each, before in self._before.items():
            signal.signal(each, before)
