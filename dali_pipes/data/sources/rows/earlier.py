"""What the last scan of a folder found, `EarlierScan`, and the lock of its cache."""

import contextlib
import fcntl
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dali_pipes.data.image_files.headers import Header, ScanOptions
from dali_pipes.data.omissions import Omission
from dali_pipes.data.sources.rows.files import File
from dali_pipes.data.table.schema import SCHEMA, are_wide

# By path, in the order of the rows: a stamp of the folder's state, the number of usable images,
# that of the others, and what is left out of the folder.
FolderRecords = Mapping[str, tuple[int, int, int, list[Omission]]]


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
    """The images of the last scan, by folder.

    Args:
        samples: the usable images of the last scan, folder by folder; None: there was none.
        folders: the folders of that scan.
        classes: the classes of that scan.
        trust: whether a folder that was not modified is taken to hold the same images; if not, each
            file is looked at.

    Attributes:
        classes: those of the last scan.
        folders: the folders of the last scan, by their paths.
    """

    def __init__(
        self,
        samples: pa.Table | None = None,
        folders: FolderRecords = MappingProxyType({}),
        classes: Sequence[str] = (),
        trust: bool = False,
    ):
        self._samples = SCHEMA.empty_table() if samples is None else samples
        self.classes = list(classes)
        self._trust = trust
        self.folders: dict[str, _Known] = {}
        self._subfolders: dict[str, list[str]] = defaultdict(list)

        start = 0
        if sum(usable for _, usable, *_ in folders.values()) != len(self._samples):
            return  # the records belong to other samples
        for path, (stamp, usable, others, omissions) in folders.items():
            self.folders[path] = _Known(stamp, start, usable, others, omissions)
            if path:  # the root is in no folder
                folder, name = os.path.split(path)
                self._subfolders[folder].append(name)
            start += usable

    def known_folders(
        self, root: Path, path: str, stamp: int, check: ScanOptions
    ) -> list[str] | None:
        """Returns the names of the folders in a folder of which the last scan has all images: it
        had this stamp, all its images can be used, and they were checked as thoroughly.

        Returns None if it has to be listed. A stamp of 0 says nothing.
        """
        known = self.folders.get(path)
        if not (self._trust and stamp and known and known.stamp == stamp and not known.others):
            return None
        if not usable_rows(self.rows(path), check).all():
            return None
        # a link whose target is gone is no folder any more, and changes no folder's time
        return [name for name in self._subfolders[path] if (root / path / name).is_dir()]

    def rows(self, path: str) -> pa.Table:
        """Returns the usable images of a folder; no rows if the last scan did not have it."""
        known = self.folders.get(path, _Known(0, 0, 0, 0, []))
        return self._samples.slice(known.start, known.usable)

    def with_headers(self, folder: str, files: list[str], check: ScanOptions) -> Iterator[File]:
        """Returns the files of a folder, each with its header if a check as thorough as this one
        knows it.
        """
        known = known_headers(self.rows(folder), check)
        return ((file, known.get(file)) for file in map(os.fsencode, files))


@contextlib.contextmanager
def scanning_into(cache: Path | None) -> Iterator[None]:
    """Another scan into the same cache waits until this one has ended, and then finds what it has
    saved; None, or a folder that cannot be written: nobody waits.
    """
    opened = cache and _locked(cache.with_name(f"{cache.name}.lock"))
    try:
        yield
    finally:
        if opened:
            Path(opened.name).unlink(missing_ok=True)
            opened.close()


def _locked(file: Path) -> BinaryIO | None:
    """Opens a file once no other scan has it; None: it cannot be opened or locked.

    The lock ends with this process, also if a process that it forked goes on.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        while True:
            opened = file.open("wb")
            fcntl.lockf(opened, fcntl.LOCK_EX)

            # The scan that held the lock may have removed the file before this one got it.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(opened.fileno()), file.stat()):
                    return opened
            opened.close()
    except OSError:
        return None
