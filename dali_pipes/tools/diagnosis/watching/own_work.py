"""Tells what diagnose runs within a user's program from what the program runs itself."""

import os
import threading


class OwnWork:
    """Marks the work of diagnose: `with own_work: ...`.

    The hooks leave alone what happens within the block, such as the iterations of the examination.
    """

    def __init__(self) -> None:
        self.runs, self._pid, self._thread = False, os.getpid(), 0

    def __enter__(self) -> None:
        self.runs, self._thread = True, threading.get_ident()

    def __exit__(self, *error: object) -> None:
        self.runs = False

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a process that the program has forked, such as a worker of a loader."""
        return os.getpid() != self._pid

    @property
    def is_mine(self) -> bool:
        """Whether what this thread does now is diagnose's, or that of a process which diagnose has
        started, such as a worker of its loader.
        """
        return self.runs and (self.is_elsewhere or threading.get_ident() == self._thread)

    @property
    def is_programs(self) -> bool:
        """Whether what happens now is the program's, in its main process."""
        return not self.runs and not self.is_elsewhere
