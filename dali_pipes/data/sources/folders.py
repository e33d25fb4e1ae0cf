"""Class folders: which folders are classes (`sort_by_class`, here and in a store), and the images
of those on a disk, in the order of ImageFolder (`scan_folder`).

All folders are listed first. A folder whose stamp has not changed since the last scan is neither
listed nor read.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from dali_pipes.checks import check_names
from dali_pipes.data.composed import composed
from dali_pipes.data.image_files.headers import IMAGE_EXTENSIONS, Header, ScanOptions, is_image
from dali_pipes.data.labels.reader import no_labels
from dali_pipes.data.omissions import Omission, count_by_kind
from dali_pipes.data.sources.hugging_face import embedded_files
from dali_pipes.data.sources.names import (
    BESIDE,
    HOUSEKEEPING_FOLDERS,
    LOOPS,
    NUMBERED,
    UNNAMED,
    UNREADABLE,
    choose_classes,
    name_folders,
    refuse_inner_folders,
    refuse_split_folders,
    select_images,
)
from dali_pipes.data.sources.rows.earlier import EarlierScan, FolderRecords
from dali_pipes.data.sources.rows.files import CHUNK, file_rows, read_headers
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.sources.tree import Listed, files_below, walk
from dali_pipes.data.spelling import no_labels as leave_labels_out
from dali_pipes.data.table.schema import replace_column
from dali_pipes.errors import ManifestError

_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system: FAT's


class Folder(NamedTuple):
    """A folder that may hold images.

    Attributes:
        path: relative to the root.
        stamp: changes whenever an entry is added or removed; 0: the file system does not tell. See
            `_stamp`.
        images: paths relative to the root, sorted; None: the images are those of an earlier scan.
        omissions: the other files in the folder, which are left out.
        label: the number of the class that its images belong to; -1: they belong to none.
    """

    path: str
    stamp: int
    images: list[str] | None
    omissions: list[Omission]
    label: int = -1


def sort_by_class(
    root: Path | str,
    folders: Sequence[Folder],
    numbered: Sequence[str],
    earlier: EarlierScan,
    named: Sequence[str] | None,
) -> tuple[list[str], list[Folder]]:
    """Returns the names of the classes, and the folders with their numbers, in ImageFolder's order.

    The first folder is the root, with all that is left out besides the files of the others.

    Args:
        folders: the root first.
        numbered: folders that are left out, and to which ImageFolder gives numbers.
        named: the classes that the user names, as `check_names` returns them; None: each folder in
            the root is one.

    Raises:
        ManifestError: the folders are splits, or are not those that are named.
    """
    top, *below = folders
    by_top: dict[str, list[Folder]] = {}
    for folder in below:
        by_top.setdefault(folder.path.split("/")[0], []).append(folder)
    # as ImageFolder, which goes through sorted(os.walk(class folder))
    groups = {
        name: sorted(by_top[folder], key=lambda inner: inner.path)
        for name, folder in name_folders(root, by_top).items()
    }
    counts = {
        name: sum(_count(folder, earlier) for folder in group) for name, group in groups.items()
    }
    inner = {
        name: {folder.path.split("/")[1] for folder in group if "/" in folder.path}
        for name, group in groups.items()
    }
    classes = choose_classes(root, counts, inner, named)

    kept: list[Folder] = []
    for number, name in enumerate(classes):
        group = groups.get(name, [])
        # a user who names the classes says that these folders are classes
        if named is None:
            directly = sum(_count(each, earlier) for each in group if "/" not in each.path)
            top_folder = group[0].path.split("/")[0]
            refuse_inner_folders(root, top_folder, sorted(inner[name]), len(classes), directly)
        kept += [folder._replace(label=number) for folder in group]

    unnamed = [
        (UNNAMED, image)
        for name in groups.keys() - set(classes)
        for folder in groups[name]
        for image in _images_of(folder, earlier)
    ]
    omissions = [
        *top.omissions,
        *count_by_kind((BESIDE, image) for image in top.images or ()),
        *count_by_kind(sorted(unnamed)),
        *count_by_kind(((NUMBERED, name) for name in numbered), "folder"),
    ]
    return classes, [Folder("", 0, [], omissions), *kept]


def _count(folder: Folder, earlier: EarlierScan) -> int:
    """Returns the number of images directly in a folder."""
    return len(earlier.rows(folder.path)) if folder.images is None else len(folder.images)


def _images_of(folder: Folder, earlier: EarlierScan) -> list[str]:
    if folder.images is not None:
        return folder.images
    return list(map(os.fsdecode, earlier.rows(folder.path)["path"].to_pylist()))


def scan_folder(
    root: Path, entries: Sequence[tuple[str, bool]], check: ScanOptions, earlier: EarlierScan
) -> tuple[list[str], pa.Table | None, FolderRecords]:
    """Returns class names, rows and the records of the folders that were scanned; the rows are None
    if no folder was touched since the earlier scan.

    Args:
        entries: those of the root, as from `list_entries`.
    """
    classes, folders = list_folders(root, entries, check, earlier)
    if classes == earlier.classes and _are_as_before(folders, earlier):
        return classes, None, {}

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
            rows = [replace_column(known, "label", make_labels(folder.label, len(known), check))]
        else:
            rows = list(_rows(folder.images, folder.label, headers, check))

        usable = sum(table_rows["problem"].null_count for table_rows in rows)
        others = sum(map(len, rows)) - usable
        records[folder.path] = folder.stamp, usable, others, folder.omissions
        tables += rows

    return classes, pa.concat_tables(tables), records


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
    images: list[str], label: int, headers: Iterator[Header], check: ScanOptions
) -> Iterator[pa.Table]:
    size = CHUNK[check.verify]
    for start in range(0, len(images), size):
        paths = list(map(os.fsencode, images[start : start + size]))
        labels = make_labels(label, len(paths), check)
        yield file_rows(paths, labels, list(islice(headers, len(paths))))


def make_labels(label: int, images: int, check: ScanOptions) -> pa.Array:
    """Returns the labels of images of one class; empty lists where no label is read."""
    return pa.array([label] * images, pa.int32()) if check.with_labels else no_labels(images)


def list_folders(
    root: Path, entries: Sequence[tuple[str, bool]], check: ScanOptions, earlier: EarlierScan
) -> tuple[list[str], list[Folder]]:
    """Returns class names and all folders with their images, in the order of ImageFolder; without
    labels, in that of a walk.
    """
    if not root.is_dir():
        raise ManifestError(
            f"{root}: no such folder; give one with a subfolder of images for each class"
        )

    classes: list[str] = []
    folders: list[Folder] = []
    numbered: list[str] = []

    def known(path: str, stat: os.stat_result) -> list[str] | None:
        return earlier.known_folders(root, path, _stamp(stat), check)

    # in one form of their accents
    named = None if check.classes is None else check_names("classes", check.classes)
    unnamed: list[str] = []
    # Where images have labels, the root has no stamp. Without labels it has one, which must not be
    # newer than its listing, so it is listed anew.
    for listed in walk(root, entries=entries if check.with_labels else None, known=known):
        if not listed.path and check.with_labels:
            if named is None:
                # by the names alone, before all that is below them is listed
                names = name_folders(root, listed.folders)
                refuse_split_folders(root, dict.fromkeys(names, 1), {name: set() for name in names})
            else:
                # a folder that the user names is a class, whatever it is called; others may be
                # unreadable
                inside = [*listed.folders, *listed.housekeeping]
                unnamed = [name for name in listed.folders if composed(name) not in named]
                listed.folders = sorted(name for name in inside if composed(name) in named)
                aside = {*unnamed, *listed.folders}
                listed.housekeeping = [name for name in listed.housekeeping if name not in aside]
            numbered = [
                name
                for name in listed.housekeeping
                if any(map(is_image, files_below(root, name, hidden=True)))
            ]
        folders.append(_folder(listed, earlier))

    unreadable: list[str] = []
    for name in unnamed:
        files = files_below(root, name, unreadable=unreadable)
        folders.append(Folder(name, 0, select_images(files)[0], []))
    lost = count_by_kind(((UNREADABLE, path) for path in unreadable), "folder")
    folders[0].omissions.extend(lost)
    if not check.with_labels:
        what = "no image in it"
    else:
        if len(folders) == 1:
            _refuse_no_classes(root, bool(folders[0].images))
        classes, folders = sort_by_class(root, folders, numbered, earlier, named)
        count = len({folder.path.split("/")[0] for folder in folders[1:]})
        what = f"its {count} class folders hold no image"

    if not any(_count(folder, earlier) for folder in folders):
        shards = next(filter(_has_shards, walk(root)), None)
        if shards:
            place = root / shards.path
            raise ManifestError(f"{root}: {what}, and shards lie in {place}; name this folder")
        raise ManifestError(f"{root}: {what} ({', '.join(IMAGE_EXTENSIONS)})")
    return classes, folders


def _refuse_no_classes(root: Path, has_images: bool) -> None:
    if embedded_files(root):
        raise ManifestError(
            f"{root}: its Parquet files hold the images; open them with Manifest.open or "
            "Manifest.from_table"
        )

    do = "put the images of each class into a subfolder"
    if not has_images:
        raise ManifestError(f"{root}: no class folders and no images in it; {do}")
    side_by_side = f"{root}: no class folders in it, only images side by side; {do}"
    raise ManifestError(
        f"{side_by_side}; without labels it is taken as it is (", leave_labels_out(), ")"
    )


def _has_shards(listed: Listed) -> bool:
    return any(is_shard(name) or name.endswith(".parquet") for name in listed.files or ())


def _folder(listed: Listed, earlier: EarlierScan) -> Folder:
    path = listed.path
    if listed.is_loop:
        return Folder(path, 0, [], count_by_kind([(LOOPS, path)]))
    stamp = _stamp(listed.stat)
    if listed.files is None:
        return Folder(path, stamp, None, earlier.folders[path].omissions)

    images, omissions = select_images(listed.paths)
    housekeeping = (f"{listed.join(name)}/" for name in listed.housekeeping)
    omissions += count_by_kind(((HOUSEKEEPING_FOLDERS, each) for each in housekeeping), "file")
    # A change within the clock's resolution does not change the stamp, which is not kept then.
    settled = listed.time_ns - listed.stat.st_mtime_ns > _SETTLED_NS
    return Folder(path, stamp if settled else 0, images, omissions)


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
