"""The claim of a run to its folder, so that two runs never write the same files."""

import contextlib
from pathlib import Path
from typing import Self

from dali_pipes.errors import ConfigError
from dali_pipes.system.locks import locked

_LOCK = ".lock"
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
        self._lock = contextlib.ExitStack()
        self._is_taken = False

    def take(self) -> None:
        """Takes the folder, if it is there, and removes temporary files of a killed run.

        Raises:
            ConfigError: another run has it.
        """
        if self._is_taken or not self._folder.is_dir():
            return
        try:
            self._lock.enter_context(locked(self._folder / _LOCK, wait_s=_WAIT_S))
        except BlockingIOError:
            raise ConfigError(
                f"{self._folder}: another run is writing there; wait for its end, or choose "
                f"another folder with {self._elsewhere}"
            ) from None
        self._is_taken = True

        for left in [each for one in self._temporary for each in self._folder.glob(one)]:
            with contextlib.suppress(OSError):
                left.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()
