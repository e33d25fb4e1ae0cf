"""What earlier scans of a folder found: `EarlierScan` has the last scan, and `Journal` the rows of
one that was killed, from which the next scan goes on.
"""

import contextlib
import fcntl
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data.image_files.headers import Header, ScanOptions
from dali_pipes.data.omissions import Omission
from dali_pipes.data.sources.rows.files import File
from dali_pipes.data.table.schema import RULES, SCHEMA, are_wide

# By path, in the order of the rows: a stamp of the folder's state, the number of usable images,
# that of the others, and what is left out of the folder.
FolderRecords = Mapping[str, tuple[int, int, int, list[Omission]]]


_RULES = {b"rules": str(RULES).encode()}


class _Known(NamedTuple):
    stamp: int
    start: int
    usable: int
    others: int
    omissions: list[Omission]


def pixels(rows: pa.Table) -> NDArray[np.int64]:
    # int64, since a product of two int32 may overflow
    return rows["height"].to_numpy().astype(np.int64) * rows["width"].to_numpy()


def usable_rows(rows: pa.Table, check: ScanOptions) -> NDArray[np.bool_]:
    """Returns which images are usable according to a check that was as thorough as this one."""
    usable = rows["problem"].is_null().to_numpy() & (pixels(rows) <= check.max_pixels)
    if check.bits == 8:
        usable &= ~are_wide(rows["format"]).to_numpy()
    return usable & rows["decoded"].to_numpy() if check.verify == "full" else usable


def known_headers(rows: pa.Table, check: ScanOptions) -> dict[bytes, Header]:
    """Returns the headers of usable images by their paths, if a check that was as thorough as this
    one knows them.
    """
    good = rows.filter(pa.array(usable_rows(rows, check)))
    headers = map(Header, *(good[name].to_pylist() for name in Header._fields))
    return dict(zip(good["path"].to_pylist(), headers, strict=True))


class EarlierScan:
    """The images of earlier scans, by folder.

    Args:
        samples: the usable images of the last scan, folder by folder; None: there was none.
        folders: the folders of that scan.
        classes: the classes of that scan.
        journal: what a scan that was killed had read; this scan adds what it reads.
        trust: whether a folder that was not modified is taken to hold the same images; if not, each
            file is looked at.

    Attributes:
        classes: those of the last scan.
        folders: the folders of the last scan, by their paths.
        subfolders: the paths of the subfolders, by the path of their folder.
    """

    def __init__(
        self,
        samples: pa.Table | None,
        folders: FolderRecords,
        classes: list[str],
        journal: "Journal",
        trust: bool,
    ):
        self._samples = SCHEMA.empty_table() if samples is None else samples
        self.classes = classes
        self.journal, self._trust = journal, trust
        self.folders: dict[bytes, _Known] = {}
        self.subfolders: dict[bytes, list[bytes]] = defaultdict(list)

        start = 0
        if sum(usable for _, usable, *_ in folders.values()) != len(self._samples):
            return  # the records belong to other samples
        for name, (stamp, usable, others, omissions) in folders.items():
            path = os.fsencode(name)
            self.folders[path] = _Known(stamp, start, usable, others, omissions)
            if path:  # the root is in no folder
                self.subfolders[os.path.split(path)[0]].append(path)
            start += usable

    def has_all_of(self, path: bytes, stamp: int, check: ScanOptions) -> bool:
        """Whether the last scan has all images of a folder: the folder had this stamp, all its
        images can be used, and they were checked as thoroughly.
        """
        known = self.folders.get(path)
        if not (self._trust and known and known.stamp == stamp and not known.others):
            return False
        return bool(usable_rows(self.rows(path), check).all())

    def rows(self, path: bytes) -> pa.Table:
        """Returns the usable images of a folder; no rows if the last scan did not have it."""
        known = self.folders.get(path, _Known(0, 0, 0, 0, []))
        return self._samples.slice(known.start, known.usable)

    def with_headers(self, folder: bytes, files: list[bytes], check: ScanOptions) -> Iterator[File]:
        """Returns the files of a folder, each with its header if a check as thorough as this one
        knows it.
        """
        known: dict[bytes, Header] = {}
        # the journal comes last, since what it says of a file is newer
        for rows in [self.rows(folder), *self.journal.tables.get(folder, [])]:
            known |= known_headers(rows, check)
        return ((file, known.get(file)) for file in files)


class Journal:
    """A file of Arrow tables, one after the other, each with rows of one folder.

    A table whose end is missing, since the scan was killed, is cut off. Another scan into the same
    file waits until this one has ended, and then finds what it has saved. Leaving the block without
    an error removes the file.

    Args:
        cache: the file that the scan is saved in; nothing is kept if it is None or cannot be
            written.
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
            schema = table.schema.with_metadata(_RULES)
            with pa.ipc.new_stream(self._opened, schema) as stream:
                stream.write_table(table.cast(schema))
            self._opened.flush()  # what is only in this process would be lost if it is killed
        except OSError:  # the disk is full: the scan goes on without a journal
            Path(self._opened.name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self._opened.close()
            self._opened = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._opened:
            # after an error what was read stays for the next scan; an empty file is of no use
            if not error or not os.fstat(self._opened.fileno()).st_size:
                Path(self._opened.name).unlink(missing_ok=True)
            self._opened.close()

    def _read(self, content: pa.Buffer) -> int:
        """Reads the tables and returns where the last whole one ends, in bytes."""
        reader, end = pa.BufferReader(content), 0
        while end < len(content):
            try:
                # Arrow does not check by itself what a damaged file says
                table = pa.ipc.open_stream(reader).read_all()
                table.validate(full=True)

                if not _is_ours(table.schema):
                    break  # written by another version
                self.tables[os.path.split(table["path"][0].as_py())[0]].append(table)
            except (pa.ArrowException, OSError, KeyError, IndexError, TypeError):
                break
            end = reader.tell()
        return end


def _is_ours(schema: pa.Schema) -> bool:
    """Whether a scan with these rules wrote a table; its images may have labels or none."""
    known = schema.metadata == _RULES and schema.names == SCHEMA.names
    return known and all(
        schema.field(field.name) == field for field in SCHEMA if field.name != "label"
    )


def _locked(file: Path) -> BinaryIO | None:
    """Opens a file once no other scan has it; None: it cannot be opened or locked.

    The lock ends with this process, also if a process that it forked goes on.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        while True:
            # for appending, which keeps what a scan that was killed has left
            opened = file.open("a+b")
            fcntl.lockf(opened, fcntl.LOCK_EX)

            # The scan that held the lock may have removed the file before this one got it.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(opened.fileno()), file.stat()):
                    opened.seek(0)
                    return opened
            opened.close()
    except OSError:
        return None
