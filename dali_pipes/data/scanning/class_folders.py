"""Images in a tree of folders, one for each class, on a disk or in an object store: in the order of ImageFolder, as rows."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from dali_pipes.data.config import SPLITS
from dali_pipes.data.scanning.earlier import Earlier, FolderRecords, Journal
from dali_pipes.data.scanning.files import CHUNK, file_rows, read_headers
from dali_pipes.data.scanning.headers import IMAGE_EXTENSIONS, Header, ScanOptions, examine, not_fetched, os_problem
from dali_pipes.data.scanning.layouts import describe_no_classes, refuse_other_objects
from dali_pipes.data.scanning.tables import embedded_files
from dali_pipes.data.shards.remote import FileVersion, list_all, read_object
from dali_pipes.data.table.schema import replaced
from dali_pipes.errors import ManifestError
from dali_pipes.system.progress import track

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system: FAT's
_REQUESTS = 32  # to an object store at the same time
_HEAD = 2**16  # bytes that nearly all headers fit into


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


def scan_folder(root: Path, check: ScanOptions, earlier: Earlier) -> tuple[list[str], pa.Table | None, FolderRecords]:
    """Class names, rows, and the folders that were scanned; None for the rows if no folder was touched since the earlier scan."""
    classes = list_classes(root)
    folders = list_folders(root, classes, earlier, check)
    if all(folder.images is None for folder in folders) and [folder.path for folder in folders] == list(earlier.folders):
        return classes, None, {}
    total = sum(len(folder.images or ()) for folder in folders)
    files = (file for folder in folders if folder.images for file in earlier.with_headers(folder.path, folder.images, check))
    headers = read_headers(root, files, total, check)
    tables: list[pa.Table] = []
    records: dict[str, tuple[int, int, int]] = {}
    for folder in folders:
        if folder.images is None:
            known = earlier.rows(folder.path)  # the class may have another number now
            rows = [replaced(known, "label", pa.repeat(pa.scalar(folder.label, known["label"].type), len(known)))]
        else:
            rows = list(_rows(folder.images, folder.label, headers, check, earlier.journal))
        usable = sum(each["problem"].null_count for each in rows)
        records[os.fsdecode(folder.path)] = (folder.mtime_ns, usable, sum(map(len, rows)) - usable)
        tables += rows
    return classes, pa.concat_tables(tables), records


def _rows(images: list[bytes], label: int, headers: Iterator[Header], check: ScanOptions, journal: Journal) -> Iterator[pa.Table]:
    size = CHUNK[check.verify]
    for start in range(0, len(images), size):
        paths = images[start : start + size]
        rows = file_rows(paths, pa.array([label] * len(paths)), list(islice(headers, len(paths))))
        journal.add(rows)
        yield rows


def scan_objects(url: str, check: ScanOptions) -> tuple[list[str], pa.Table]:
    """Class names and rows of images in an object store that are objects of their own, in a folder for each class."""
    listed = list_all(url)
    refuse_other_objects(url, listed)
    found = {name: version for name, version in listed.items() if _is_image(name)}
    if not found:
        raise ManifestError(f"{url}: no shard there (NAME.tar or NAME.tfrecord), and no image ({', '.join(IMAGE_EXTENSIONS)})")
    if outside := [name for name in found if "/" not in name]:
        raise ManifestError(f"{url}: {outside[0]} is in no class folder; put the images of each class below a separate one")
    names = sorted(found, key=lambda name: (name.split("/")[0], *os.path.split(name)))
    classes = sorted({name.split("/")[0] for name in names})
    numbers = {name: number for number, name in enumerate(classes)}
    with ThreadPoolExecutor(check.workers or _REQUESTS) as pool:
        headers = pool.map(lambda name: _fetched_header(f"{url}/{name}", found[name], check), names)
        rows = list(track(headers, "reading images", len(names), check.progress))
    labels = pa.array([numbers[name.split("/")[0]] for name in names])
    return classes, file_rows([os.fsencode(name) for name in names], labels, rows)


def _fetched_header(url: str, version: FileVersion, check: ScanOptions) -> Header:
    size, rest = version
    if not size:
        return Header(0, rest, problem="empty file")
    try:
        part = read_object(url, 0, size if check.verify == "full" else min(size, _HEAD))
        header = examine(BytesIO(part), size, rest, check)
        if header.problem and len(part) < size:  # it may be longer than usual
            header = examine(BytesIO(read_object(url, 0, size)), size, rest, check)
        return header
    except OSError as error:
        raise not_fetched(url, error) from None


def list_classes(root: Path) -> list[str]:
    """The names of the class folders, as torchvision's ImageFolder sorts them."""
    if not root.is_dir():
        raise ManifestError(f"{root}: no such folder; give one with a subfolder of images for each class")
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not classes:
        if embedded_files(root):
            raise ManifestError(f"{root}: its Parquet files hold the images; open them with Manifest.open or Manifest.from_table")
        if compressed := [file for file in sorted(root.iterdir()) if file.name.endswith(_COMPRESSED)]:
            raise ManifestError(f"{compressed[0]}: is compressed, so its images cannot be read one by one; unpack it to a .tar")
        raise ManifestError(describe_no_classes(root))
    if set(classes) <= set(SPLITS) and not any(_images_in(root / name) for name in classes):
        raise ManifestError(f"{root}: holds {' and '.join(classes)}, not classes; name one of them: {root / classes[0]}")
    return classes


def list_folders(root: Path, classes: list[str], earlier: Earlier, check: ScanOptions) -> list[Folder]:
    """All folders with their images, in the order of ImageFolder. One that has not been touched since is not listed again."""
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
