"""A file that is touched while a run makes progress, so that a supervisor sees when it hangs."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._path:
            self._path.unlink(missing_ok=True)
