"""The rows of a scan that has not ended: if it is killed, the next one goes on from there."""

import contextlib
import fcntl
import os
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import pyarrow as pa

from dali_pipes.data.table.schema import SCHEMA


class Journal:
    """A file of tables, one after the other, each of one folder; one of which the end is missing is cut off.

    Another scan into the same file waits until this one has ended, and then finds what it has saved.
    On leaving the block without an error the file is removed.

    Args:
        cache: the file that the scan is saved in; None, or one that cannot be written: nothing is kept.
    """

    def __init__(self, cache: Path | None):
        self._opened = cache and _locked(cache.with_name(f"{cache.name}.unfinished"))
        self.tables: dict[bytes, list[pa.Table]] = defaultdict(list)
        if self._opened:
            self._opened.truncate(self._read(pa.py_buffer(self._opened.read())))
            self._opened.seek(0, os.SEEK_END)

    def add(self, table: pa.Table) -> None:
        if not self._opened:
            return
        try:
            with pa.ipc.new_stream(self._opened, table.schema) as stream:
                stream.write_table(table)
            self._opened.flush()
        except OSError:  # the disk is full: the scan goes on without
            Path(self._opened.name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._opened.close()
            self._opened = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._opened:
            if not error or not os.fstat(self._opened.fileno()).st_size:
                Path(self._opened.name).unlink(missing_ok=True)
            self._opened.close()

    def _read(self, content: pa.Buffer) -> int:
        """Returns where the last whole table ends."""
        reader, end = pa.BufferReader(content), 0
        while end < len(content):
            try:
                table = pa.ipc.open_stream(reader).read_all()
                table.validate(full=True)
                if table.schema != SCHEMA:
                    break  # of another version
                self.tables[os.path.split(table["path"][0].as_py())[0]].append(table)
            except (pa.ArrowException, OSError, KeyError, IndexError, TypeError):
                break
            end = reader.tell()
        return end


def _locked(file: Path) -> BinaryIO | None:
    """The file, once no other scan has it; the lock ends with the process, but one that it forked may outlive it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        while True:
            opened = file.open("a+b")
            fcntl.lockf(opened, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(opened.fileno()), file.stat()):
                    opened.seek(0)
                    return opened
            opened.close()  # another scan has ended, and has removed it
    except OSError:
        return None
