"""What earlier scans of a folder found: the last one, and one that was killed."""

import os
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dali_pipes.data.headers import Header, ScanOptions
from dali_pipes.data.table.schema import SCHEMA

FolderRecords = Mapping[str, tuple[int, int, int]]  # by path: modification time, usable images, others; in the order of the rows


class _Known(NamedTuple):
    mtime_ns: int
    start: int
    usable: int
    others: int


class Earlier:
    """Images by folder.

    Args:
        samples: the usable images of the last scan, folder by folder; None: there was none.
        folders: the folders of that scan.
        unfinished: what a scan that was killed had read, by folder.
        trust: whether a folder that was not modified holds what it held; if not, each file is looked at.
    """

    def __init__(self, samples: pa.Table | None, folders: FolderRecords, unfinished: Mapping[bytes, list[pa.Table]], trust: bool):
        self._samples = SCHEMA.empty_table() if samples is None else samples
        self._unfinished, self._trust = unfinished, trust
        self.records: FolderRecords = {}
        self._folders: dict[bytes, _Known] = {}
        self._subfolders: dict[bytes, list[bytes]] = defaultdict(list)
        start = 0
        if sum(usable for _, usable, _ in folders.values()) != len(self._samples):
            return  # not of these samples
        self.records = folders
        for name, (mtime_ns, usable, others) in folders.items():
            path = os.fsencode(name)
            self._folders[path] = _Known(mtime_ns, start, usable, others)
            parent, own = os.path.split(path)
            self._subfolders[parent].append(own)
            start += usable

    def has_all_of(self, path: bytes, mtime_ns: int, check: ScanOptions) -> bool:
        """Whether a folder was last modified then, all images in it can be used, and they were checked as thoroughly."""
        known = self._folders.get(path)
        if not (self._trust and known and known.mtime_ns == mtime_ns and not known.others):
            return False
        rows = self.rows(path)
        pixels = rows["height"].to_numpy().astype(np.int64) * rows["width"].to_numpy()
        return bool(pixels.max(initial=0) <= check.max_pixels and (check.verify == "header" or pc.all(rows["decoded"]).as_py()))

    def is_all_of(self, paths: list[bytes]) -> bool:
        """Whether these were all folders."""
        return paths == list(self._folders)

    def usable(self, path: bytes) -> int:
        return self._folders[path].usable

    def subfolders(self, path: bytes) -> list[bytes]:
        return self._subfolders[path]

    def rows(self, path: bytes) -> pa.Table:
        """The usable images of a folder."""
        known = self._folders[path]
        return self._samples.slice(known.start, known.usable)

    def headers(self, path: bytes) -> dict[bytes, Header]:
        """By file name, of the usable images of a folder."""
        tables = [self.rows(path)] if path in self._folders else []
        found: dict[bytes, Header] = {}
        for table in tables + self._unfinished.get(path, []):
            columns = zip(*(table[name].to_pylist() for name in Header._fields), strict=True)
            found |= {os.path.split(file)[1]: Header(*each) for file, each in zip(table["path"].to_pylist(), columns, strict=True)}
        return {name: header for name, header in found.items() if not header.problem}
