"""The claim of a run to its folder, so that two runs never write the same files."""

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Self

from dali_pipes.errors import ConfigError

# the workers of a run that was killed have its lock, and end seconds after it
_WAIT_S = 10.0


class Claim:
    """Keeps other runs out of a folder within the `with` block, once it has been taken.

    Args:
        folder: of the run; it may be made later.
        elsewhere: the option that names another folder.
        temporary: patterns of files that a run leaves there if it is killed while it writes them.
    """

    def __init__(self, folder: Path, elsewhere: str, temporary: tuple[str, ...] = ()):
        self._folder, self._elsewhere, self._temporary = folder, elsewhere, temporary
        self._lock: int | None = None

    def take(self) -> None:
        """Takes the folder, if it is there, and removes temporary files of a killed run.

        Raises:
            ConfigError: another run has it.
        """
        if self._lock is not None or not self._folder.is_dir():
            return
        self._lock, end = os.open(self._folder, os.O_RDONLY), time.monotonic() + _WAIT_S
        while not self._try_lock(self._lock):
            if time.monotonic() > end:
                raise ConfigError(
                    f"{self._folder}: another run is writing there; wait for its end, or choose "
                    f"another folder with {self._elsewhere}"
                )
            time.sleep(0.1)

        for left in [each for one in self._temporary for each in self._folder.glob(one)]:
            with contextlib.suppress(OSError):
                left.unlink()

    def _try_lock(self, number: int) -> bool:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # a file system without locks
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            # a worker that has not ended yet has the lock too
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
