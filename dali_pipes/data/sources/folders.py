"""Class folders on a disk: lists the images below a root and returns their manifest rows, in the
order of ImageFolder.

`scan_folder` first finds the classes (`list_classes`), then lists all folders below them
(`list_folders`), and last reads the headers of the images that no earlier scan knows. A folder
whose stamp has not changed since the last scan is neither listed nor read.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from dali_pipes.checks import check_names
from dali_pipes.data.composed import composed
from dali_pipes.data.image_files.headers import (
    IMAGE_EXTENSIONS,
    Header,
    ScanOptions,
    describe_os_error,
    is_image,
)
from dali_pipes.data.labels.reader import no_labels
from dali_pipes.data.omissions import Omission, count_by_kind
from dali_pipes.data.sources.hugging_face import embedded_files
from dali_pipes.data.sources.layouts import no_classes_error
from dali_pipes.data.sources.names import (
    BESIDE,
    HOUSEKEEPING_FOLDERS,
    LOOPS,
    NUMBERED,
    UNNAMED,
    choose_classes,
    is_housekeeping,
    list_entries,
    name_folders,
    refuse_inner_folders,
    sort_names,
)
from dali_pipes.data.sources.rows.earlier import EarlierScan, FolderRecords
from dali_pipes.data.sources.rows.files import CHUNK, file_rows, read_headers
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.table.schema import replace_column
from dali_pipes.errors import ManifestError

_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system: FAT's


class Folder(NamedTuple):
    """A folder that holds images.

    Attributes:
        path: relative to the root.
        label: the number of the class that its images belong to; -1: they belong to none.
        stamp: changes whenever an entry is added or removed; 0: the file system does not tell. See
            `_stamp`.
        images: paths relative to the root, sorted; None: the images are those of an earlier scan.
        omissions: the other files in the folder, which are left out.
    """

    path: bytes
    label: int
    stamp: int
    images: list[bytes] | None
    omissions: list[Omission]


class ClassFolders(NamedTuple):
    """The classes of a root, and what is beside them.

    Attributes:
        classes: names, in the order of their numbers.
        folders: those of the classes, as the file system names them.
        omissions: images and folders in the root that belong to no class.
    """

    classes: list[str]
    folders: list[str]
    omissions: list[Omission]


def scan_folder(
    root: Path, entries: Sequence[tuple[str, bool]], check: ScanOptions, earlier: EarlierScan
) -> tuple[list[str], pa.Table | None, FolderRecords]:
    """Returns class names, rows and the records of the folders that were scanned; the rows are None
    if no folder was touched since the earlier scan.

    Args:
        entries: the entries of the root, as `list_entries` returns them.
    """
    class_folders = list_classes(root, entries, check)
    folders = list_folders(root, class_folders, earlier, check)
    if class_folders.classes == earlier.classes and _are_as_before(folders, earlier):
        return class_folders.classes, None, {}

    total = sum(len(folder.images or ()) for folder in folders)
    # lazily, so that the earlier headers of only one folder are in memory at a time
    files = (
        file
        for folder in folders
        if folder.images
        for file in earlier.with_headers(folder.path, folder.images, check)
    )
    headers = read_headers(root, files, total, check)

    # the headers come in the order of the folders
    tables: list[pa.Table] = []
    records: dict[str, tuple[int, int, int, list[Omission]]] = {}
    for folder in folders:
        if folder.images is None:
            known = earlier.rows(folder.path)  # the class may have another number now
            rows = [replace_column(known, "label", _labels(folder.label, len(known), check))]
        else:
            rows = list(_rows(folder.images, folder.label, headers, check))

        usable = sum(table_rows["problem"].null_count for table_rows in rows)
        others = sum(map(len, rows)) - usable
        records[os.fsdecode(folder.path)] = folder.stamp, usable, others, folder.omissions
        tables += rows

    return class_folders.classes, pa.concat_tables(tables), records


def _are_as_before(folders: list[Folder], earlier: EarlierScan) -> bool:
    """Whether no folder was listed again and all leave out the same files as before.

    Folders without images, such as the root of class folders, may have been listed again.
    """
    if [folder.path for folder in folders] != list(earlier.folders):
        return False

    for folder in folders:
        is_empty = folder.images == [] and not len(earlier.rows(folder.path))
        if folder.images is not None and not is_empty:
            return False
        if folder.omissions != earlier.folders[folder.path].omissions:
            return False
    return True


def _rows(
    images: list[bytes], label: int, headers: Iterator[Header], check: ScanOptions
) -> Iterator[pa.Table]:
    size = CHUNK[check.verify]
    for start in range(0, len(images), size):
        paths = images[start : start + size]
        labels = _labels(label, len(paths), check)
        yield file_rows(paths, labels, list(islice(headers, len(paths))))


def _labels(label: int, images: int, check: ScanOptions) -> pa.Array:
    return pa.array([label] * images, pa.int32()) if check.with_labels else no_labels(images)


def list_classes(
    root: Path, entries: Sequence[tuple[str, bool]], check: ScanOptions
) -> ClassFolders:
    """Returns the class folders, sorted as torchvision's ImageFolder sorts them, and what is
    beside them.
    """
    if not root.is_dir():
        raise ManifestError(
            f"{root}: no such folder; give one with a subfolder of images for each class"
        )
    if not check.with_labels:
        return ClassFolders([], [""], [])

    # A folder that the user names is a class, whatever it is called.
    named = None if check.classes is None else check_names("classes", check.classes)
    folders = [
        name
        for name, is_folder in entries
        if is_folder and (composed(name) in (named or ()) or not is_housekeeping(name))
    ]
    folder_of = name_folders(root, folders)
    images, omissions = sort_names(name for name, is_folder in entries if not is_folder)

    if not folders:
        _refuse_no_classes(root, [name for name, _ in entries])

    def has_images(name: str) -> bool:
        return next(_images_below(root, folder_of[name]), None) is not None

    def subfolders(name: str) -> set[str]:
        return {
            entry
            for entry, is_folder in list_entries(root / folder_of[name])
            if is_folder and not is_housekeeping(entry)
        }

    classes = choose_classes(root, folder_of, named, has_images, subfolders)

    # What is left out: images beside the class folders, folders that are no class, housekeeping.
    unnamed = [folder for name, folder in folder_of.items() if name not in set(classes)]
    aside = [name for name, is_folder in entries if is_folder and name not in folders]
    # ImageFolder numbers these as classes, so its numbers would differ from ours
    numbered = [name for name in aside if any(_images_below(root, name, hidden=True))]
    omissions += [
        *count_by_kind((BESIDE, name) for name in images),
        *count_by_kind(
            (UNNAMED, name) for folder in unnamed for name in _images_below(root, folder)
        ),
        *count_by_kind(((NUMBERED, name) for name in numbered), "folder"),
        *count_by_kind(((HOUSEKEEPING_FOLDERS, f"{name}/") for name in aside), "file"),
    ]

    return ClassFolders(
        classes, [folder_of[name] for name in classes if name in folder_of], omissions
    )


def _refuse_no_classes(root: Path, files: list[str]) -> None:
    if embedded_files(root):
        raise ManifestError(
            f"{root}: its Parquet files hold the images; open them with Manifest.open or "
            "Manifest.from_table"
        )

    raise no_classes_error(root)


def list_folders(
    root: Path, class_folders: ClassFolders, earlier: EarlierScan, check: ScanOptions
) -> list[Folder]:
    """Lists all folders with their images, in the order of ImageFolder.

    A folder that was not touched since the earlier scan is not listed again. The first folder is
    the root; where images have labels, none of its own images is used.
    """
    base = os.fsencode(root)
    if not check.with_labels:
        folders = _walk(base, b"", -1, earlier, check)
        # in the order of a walk that goes through each folder in sorted order
        folders.sort(key=lambda folder: os.fsdecode(folder.path).split("/"))
        what = "no image in it"
    else:
        folders = [Folder(b"", -1, 0, [], class_folders.omissions)]
        numbers = {name: number for number, name in enumerate(class_folders.classes)}

        for name in class_folders.folders:
            label = numbers[composed(name)]
            of_class = _walk(base, os.fsencode(name), label, earlier, check)
            inner = sorted(
                parts[1]
                for folder in of_class
                if len(parts := os.fsdecode(folder.path).split("/")) == 2
            )

            # a user who names the classes says that these folders are classes
            if check.classes is None:
                refuse_inner_folders(
                    root, name, inner, len(class_folders.folders), _count(of_class[0], earlier)
                )

            # as ImageFolder, which goes through sorted(os.walk(class folder))
            folders += sorted(of_class, key=lambda folder: os.fsdecode(folder.path))
        what = f"its {len(class_folders.folders)} class folders hold no image"

    if not any(_count(folder, earlier) for folder in folders):
        shards = next(_shards_below(root), None)
        if shards:
            raise ManifestError(f"{root}: {what}, and shards lie in {shards}; name this folder")
        raise ManifestError(f"{root}: {what} ({', '.join(IMAGE_EXTENSIONS)})")
    return folders


def _count(folder: Folder, earlier: EarlierScan) -> int:
    """Returns the number of images directly in a folder."""
    return len(earlier.rows(folder.path)) if folder.images is None else len(folder.images)


def _shards_below(root: Path) -> Iterator[str]:
    """Yields the folders below the root that hold shards or Parquet files."""
    for where, inner, files in os.walk(root):
        inner.sort()
        if any(is_shard(name) or name.endswith(".parquet") for name in files):
            yield where


def _walk(
    base: bytes, start: bytes, label: int, earlier: EarlierScan, check: ScanOptions
) -> list[Folder]:
    """Lists a folder and all folders below it.

    Links are followed, except one to a folder that contains it, which would never end.
    """
    folders: list[Folder] = []
    # each folder with the device and inode of all folders above it
    waiting: list[tuple[bytes, frozenset[tuple[int, int]]]] = [(start, frozenset())]
    while waiting:
        # the folder itself comes first; the callers sort those below it
        path, above = waiting.pop()
        folder, subfolders, identity = _list(base, path, label, earlier, check)
        if identity in above:
            folders.append(Folder(path, label, 0, [], count_by_kind([(LOOPS, os.fsdecode(path))])))
            continue

        folders.append(folder)
        waiting += [(subfolder, above | {identity}) for subfolder in subfolders]
    return folders


def _list(
    base: bytes, path: bytes, label: int, earlier: EarlierScan, check: ScanOptions
) -> tuple[Folder, list[bytes], tuple[int, int]]:
    """Returns a folder, the paths of its subfolders, and its device and inode."""
    full = os.path.join(base, path)
    try:
        # taken before the listing, so that a change during it does not count as settled
        now, stat = time.time_ns(), os.stat(full)
        stamp = _stamp(stat)

        if stamp and earlier.has_all_of(path, stamp, check):
            # a link whose target is gone is no folder any more, and changes no folder's time
            there = [
                subfolder
                for subfolder in earlier.subfolders[path]
                if Path(os.fsdecode(os.path.join(base, subfolder))).is_dir()
            ]
            return (
                Folder(path, label, stamp, None, earlier.folders[path].omissions),
                there,
                (stat.st_dev, stat.st_ino),
            )

        entries = [(entry.name, entry.is_dir()) for entry in os.scandir(full)]
    except OSError as error:
        raise ManifestError(
            f"{os.fsdecode(full)}: {describe_os_error(error)}; make it readable, or move it away"
        ) from None

    prefix = os.fsdecode(os.path.join(path, b""))
    files = sorted(os.fsdecode(name) for name, is_folder in entries if not is_folder)
    images, omissions = sort_names([prefix + name for name in files])

    # A change within the clock's resolution does not change the stamp, which is not kept then.
    settled = now - stat.st_mtime_ns > _SETTLED_NS
    folder = Folder(path, label, stamp if settled else 0, list(map(os.fsencode, images)), omissions)

    subfolders = [
        name for name, is_folder in entries if is_folder and not is_housekeeping(os.fsdecode(name))
    ]
    aside = sorted(
        os.fsdecode(name)
        for name, is_folder in entries
        if is_folder and is_housekeeping(os.fsdecode(name))
    )
    folder.omissions.extend(
        count_by_kind(((HOUSEKEEPING_FOLDERS, f"{prefix}{name}/") for name in aside), "file")
    )
    return folder, [os.path.join(path, name) for name in subfolders], (stat.st_dev, stat.st_ino)


def _stamp(stat: os.stat_result) -> int:
    """Returns a number that changes whenever an entry of the folder is added or removed; 0: the
    file system does not tell.

    Stores that are mounted as folders, images of file systems and some archives keep no times of
    folders, or one time for all. So the change time of the inode, which no program can set, and the
    identity of the folder count too.
    """
    if stat.st_mtime_ns <= 0 or stat.st_ctime_ns <= 0:
        return 0
    parts = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev)
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "big")


def _images_below(root: Path, folder: str, hidden: bool = False) -> Iterator[str]:
    """Yields the images of a folder of the root, and of those below it; links are followed, and no
    folder is listed twice.

    Args:
        hidden: include images that a scan leaves out and ImageFolder reads.
    """
    listed: set[tuple[int, int]] = set()
    for where, inner, files in os.walk(root / folder, followlinks=True):
        stat = os.stat(where)
        # a link to a folder above it would lead around in a circle
        if (stat.st_dev, stat.st_ino) in listed:
            inner.clear()
            continue
        listed.add((stat.st_dev, stat.st_ino))

        inner[:] = sorted(name for name in inner if hidden or not is_housekeeping(name))
        paths = [os.path.join(os.path.relpath(where, root), name) for name in sorted(files)]
        yield from filter(is_image, paths) if hidden else sort_names(paths)[0]
