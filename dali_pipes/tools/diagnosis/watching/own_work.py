"""Tells what diagnose runs within a user's program from what the program runs itself."""

import os


class OwnWork:
    """Marks the work of diagnose: `with own_work: ...`.

    The hooks leave alone what happens within the block, such as the iterations of the examination.
    """

    def __init__(self) -> None:
        self.runs, self._pid = False, os.getpid()

    def __enter__(self) -> None:
        self.runs = True

    def __exit__(self, *error: object) -> None:
        self.runs = False

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a process that the program has forked, such as a worker of a loader."""
        return os.getpid() != self._pid

    @property
    def is_programs(self) -> bool:
        """Whether what happens now is the program's, in its main process."""
        return not self.runs and not self.is_elsewhere
