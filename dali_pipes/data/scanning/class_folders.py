"""Images in a tree of folders, one for each class: their paths in the order of ImageFolder, and their rows."""

import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from dali_pipes.data.config import SPLITS
from dali_pipes.data.scanning.earlier import Earlier, FolderRecords
from dali_pipes.data.scanning.embedded import embedded_files
from dali_pipes.data.scanning.files import chunk_size, file_rows, read_headers
from dali_pipes.data.scanning.headers import IMAGE_EXTENSIONS, Header, ScanOptions, os_problem
from dali_pipes.data.scanning.journal import Journal
from dali_pipes.data.table.schema import replaced
from dali_pipes.errors import ManifestError

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system: FAT's


class Folder(NamedTuple):
    """A folder that holds images.

    Attributes:
        path: relative to the root.
        label: the class that its images are of.
        mtime_ns: its modification time, or 0 if it was modified so short a time ago that a later change could have the same.
        images: their paths, sorted; None: those of an earlier scan.
    """

    path: bytes
    label: int
    mtime_ns: int
    images: list[bytes] | None


def scan_folder(
    root: Path, check: ScanOptions, earlier: Earlier, journal: Journal, workers: int | None, progress: bool
) -> tuple[list[str], pa.Table | None, FolderRecords]:
    """Class names, rows, and the folders that were scanned; None for the rows if no folder was touched since the earlier scan."""
    classes = list_classes(root)
    folders = list_folders(root, classes, earlier, check)
    if all(folder.images is None for folder in folders) and [folder.path for folder in folders] == list(earlier.folders):
        return classes, None, {}
    total = sum(len(folder.images or ()) for folder in folders)
    files = (file for folder in folders if folder.images for file in earlier.with_headers(folder.path, folder.images, check))
    headers = read_headers(root, files, total, check, workers, progress)
    tables: list[pa.Table] = []
    records: dict[str, tuple[int, int, int]] = {}
    for folder in folders:
        rows = [_earlier_rows(folder, earlier)] if folder.images is None else list(_rows(folder, headers, check, journal))
        usable = sum(each["problem"].null_count for each in rows)
        records[os.fsdecode(folder.path)] = (folder.mtime_ns, usable, sum(map(len, rows)) - usable)
        tables += rows
    return classes, pa.concat_tables(tables), records


def _rows(folder: Folder, headers: Iterator[Header], check: ScanOptions, journal: Journal) -> Iterator[pa.Table]:
    images = iter(folder.images or ())
    while paths := list(islice(images, chunk_size(check))):
        rows = file_rows(paths, pa.array([folder.label] * len(paths)), list(islice(headers, len(paths))))
        journal.add(rows)
        yield rows


def _earlier_rows(folder: Folder, earlier: Earlier) -> pa.Table:
    """With the label that the class has now."""
    rows = earlier.rows(folder.path)
    return replaced(rows, "label", pa.repeat(pa.scalar(folder.label, rows["label"].type), len(rows)))


def list_classes(root: Path) -> list[str]:
    """The names of the class folders, as torchvision's ImageFolder sorts them.

    Raises:
        ManifestError: there are none.
    """
    if not root.is_dir():
        raise ManifestError(f"{root}: no such folder; give one with a subfolder of images for each class")
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        _refuse_other_containers(root)
        meant = f"; did you mean {root.parent}, which holds the classes?" if _images_in(root) else ""
        raise ManifestError(f"{root}: no class folders in it; put the images of each class into a separate subfolder{meant}")
    if set(classes) <= set(SPLITS) and not any(_images_in(root / name) for name in classes):
        raise ManifestError(f"{root}: holds {' and '.join(classes)}, not classes; name one of them: {root / classes[0]}")
    return classes


def list_folders(root: Path, classes: list[str], earlier: Earlier, check: ScanOptions) -> list[Folder]:
    """All folders with their images, in the order of ImageFolder. One that has not been touched since is not listed again.

    Raises:
        ManifestError: a folder cannot be read, or there is no image in any.
    """
    base, folders = os.fsencode(root), []
    for label, name in enumerate(classes):
        found, waiting = [], [os.fsencode(name)]
        while waiting:
            folder, subfolders = _list(base, waiting.pop(), label, earlier, check)
            found.append(folder)
            waiting += subfolders
        folders += sorted(found, key=lambda folder: os.fsdecode(folder.path))
    if not any(len(earlier.rows(folder.path) if folder.images is None else folder.images) for folder in folders):
        raise ManifestError(f"{root}: its {len(classes)} class folders hold no image ({', '.join(IMAGE_EXTENSIONS)})")
    return folders


def _list(base: bytes, path: bytes, label: int, earlier: Earlier, check: ScanOptions) -> tuple[Folder, list[bytes]]:
    """A folder, and the paths of its subfolders."""
    full = os.path.join(base, path)
    try:
        now, mtime_ns = time.time_ns(), os.stat(full).st_mtime_ns
        if earlier.has_all_of(path, mtime_ns, check):
            # without links of which the target is gone, which changes no folder's time
            there = [each for each in earlier.subfolders[path] if Path(os.fsdecode(os.path.join(base, each))).is_dir()]
            return Folder(path, label, mtime_ns, None), there
        entries = [(entry.name, entry.is_dir()) for entry in os.scandir(full)]
    except OSError as error:
        raise ManifestError(f"{os.fsdecode(full)}: {os_problem(error)}; make it readable, or move it away") from None
    images = sorted((name for name, is_folder in entries if not is_folder and _is_image(os.fsdecode(name))), key=os.fsdecode)
    settled = mtime_ns if now - mtime_ns > _SETTLED_NS else 0
    folder = Folder(path, label, settled, [os.path.join(path, name) for name in images])
    return folder, [os.path.join(path, name) for name, is_folder in entries if is_folder]


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)


def _images_in(folder: Path) -> bool:
    return any(map(_is_image, os.listdir(folder)))


def _refuse_other_containers(root: Path) -> None:
    """Raises for files of many images whose images cannot be read one by one."""
    if embedded_files(root):
        raise ManifestError(f"{root}: its Parquet files hold the images; open them with Manifest.open or Manifest.from_table")
    for file in sorted(root.iterdir()):
        if file.name.endswith(_COMPRESSED):
            raise ManifestError(f"{file}: is compressed, so its images cannot be read one by one; unpack it to a .tar")
