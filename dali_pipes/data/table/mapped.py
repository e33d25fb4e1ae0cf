"""A file that all processes of a machine map and share."""

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from dali_pipes.errors import ManifestError


class MappedFile:
    """A file mapped for reading.

    A file that is replaced, as ours are, stays what it was for those who have mapped it. One that is written into is noticed by
    `check`; reading what has been cut off a file would end the process (SIGBUS).

    Raises:
        OSError, ValueError: it cannot be mapped.
    """

    def __init__(self, file: Path):
        self._file = file
        with file.open("rb") as opened:
            self.content = pa.py_buffer(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
            self._number = os.dup(opened.fileno())
        self._stamp = self._now()

    def check(self) -> None:
        """
        Raises:
            ManifestError: the file was written into since it was mapped.
        """
        if self._now() != self._stamp:
            raise ManifestError(f"{self._file}: was changed while it was in use; write a new file and rename it, and start again")

    def _now(self) -> tuple[int, int]:
        stat = os.fstat(self._number)
        return stat.st_size, stat.st_mtime_ns

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the program's end `os` may be gone
        if hasattr(self, "_number"):
            close(self._number)
