"""What earlier scans of a folder found: the last one, and one that was killed."""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data.scanning.files import File
from dali_pipes.data.scanning.headers import Header, ScanOptions
from dali_pipes.data.table.schema import SCHEMA

FolderRecords = Mapping[str, tuple[int, int, int]]  # by path: modification time, usable images, others; in the order of the rows


class _Known(NamedTuple):
    mtime_ns: int
    start: int
    usable: int
    others: int


def pixels(rows: pa.Table) -> NDArray[np.int64]:
    return rows["height"].to_numpy().astype(np.int64) * rows["width"].to_numpy()


def checked(rows: pa.Table, check: ScanOptions) -> NDArray[np.bool_]:
    """Which images are usable by an earlier check that was as thorough as this one."""
    found = rows["problem"].is_null().to_numpy() & (pixels(rows) <= check.max_pixels)
    return found & rows["decoded"].to_numpy() if check.verify == "full" else found


class Earlier:
    """Images by folder.

    Args:
        samples: the usable images of the last scan, folder by folder; None: there was none.
        folders: the folders of that scan.
        unfinished: what a scan that was killed had read, by folder.
        trust: whether a folder that was not modified holds what it held; if not, each file is looked at.

    Attributes:
        folders: those of the last scan by their path.
        subfolders: their paths by that of the folder they are in.
    """

    def __init__(self, samples: pa.Table | None, folders: FolderRecords, unfinished: Mapping[bytes, list[pa.Table]], trust: bool):
        self._samples = SCHEMA.empty_table() if samples is None else samples
        self._unfinished, self._trust = unfinished, trust
        self.folders: dict[bytes, _Known] = {}
        self.subfolders: dict[bytes, list[bytes]] = defaultdict(list)
        start = 0
        if sum(usable for _, usable, _ in folders.values()) != len(self._samples):
            return  # not of these samples
        for name, (mtime_ns, usable, others) in folders.items():
            path = os.fsencode(name)
            self.folders[path] = _Known(mtime_ns, start, usable, others)
            self.subfolders[os.path.split(path)[0]].append(path)
            start += usable

    def has_all_of(self, path: bytes, mtime_ns: int, check: ScanOptions) -> bool:
        """Whether a folder was last modified then, all images in it can be used, and they were checked as thoroughly."""
        known = self.folders.get(path)
        if not (self._trust and known and known.mtime_ns == mtime_ns and not known.others):
            return False
        return bool(checked(self.rows(path), check).all())

    def rows(self, path: bytes) -> pa.Table:
        """The usable images of a folder; none of one that was not there."""
        known = self.folders.get(path, _Known(0, 0, 0, 0))
        return self._samples.slice(known.start, known.usable)

    def with_headers(self, folder: bytes, files: list[bytes], check: ScanOptions) -> Iterator[File]:
        """The files of a folder, each with its header if that is known from a check as thorough as this one."""
        known: dict[bytes, Header] = {}
        for rows in [self.rows(folder), *self._unfinished.get(folder, [])]:
            good = rows.filter(pa.array(checked(rows, check)))
            headers = map(Header, *(good[name].to_pylist() for name in Header._fields))
            known |= zip(good["path"].to_pylist(), headers, strict=True)
        return ((file, known.get(file)) for file in files)
