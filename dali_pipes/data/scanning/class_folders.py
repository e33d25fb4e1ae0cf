"""Images in a tree of folders, one for each class, on a disk or in an object store: in the order of ImageFolder, as rows."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from dali_pipes.data.labels import no_labels
from dali_pipes.data.omissions import Omission, count_by_kind
from dali_pipes.data.scanning.earlier import Earlier, FolderRecords, Journal
from dali_pipes.data.scanning.files import CHUNK, file_rows, read_headers
from dali_pipes.data.scanning.headers import (
    IMAGE_EXTENSIONS,
    Header,
    ScanOptions,
    examine,
    is_image,
    not_fetched,
    os_problem,
)
from dali_pipes.data.scanning.housekeeping import is_housekeeping
from dali_pipes.data.scanning.layouts import describe_no_classes, refuse_other_objects
from dali_pipes.data.scanning.names import sort_names
from dali_pipes.data.scanning.split_folders import refuse_split_folders
from dali_pipes.data.scanning.tables import embedded_files
from dali_pipes.data.shards.remote import FileVersion, list_all, read_object
from dali_pipes.data.table.schema import replaced
from dali_pipes.errors import ManifestError
from dali_pipes.system.progress import track

_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system: FAT's
_REQUESTS = 32  # to an object store at the same time
_HEAD = 2**16  # bytes that nearly all headers fit into

BESIDE = "images beside the class folders"
UNNAMED = "images of folders that classes does not name"
NUMBERED = "housekeeping folders with images, to which ImageFolder gives class numbers"


class Folder(NamedTuple):
    """A folder that holds images.

    Attributes:
        path: relative to the root.
        label: the class that its images are of; -1: of none.
        mtime_ns: its modification time, or 0 if it was modified so short a time ago that a later change could have the same.
        images: their paths, sorted; None: those of an earlier scan.
        omissions: other files in it.
    """

    path: bytes
    label: int
    mtime_ns: int
    images: list[bytes] | None
    omissions: list[Omission]


class ClassFolders(NamedTuple):
    """What lies directly in the root.

    Attributes:
        classes: names, in the order of their numbers.
        folders: those of the classes that have one.
        omissions: what lies beside them.
    """

    classes: list[str]
    folders: list[str]
    omissions: list[Omission]


def scan_folder(root: Path, check: ScanOptions, earlier: Earlier) -> tuple[list[str], pa.Table | None, FolderRecords]:
    """Class names, rows, and the folders that were scanned; None for the rows if no folder was touched since the earlier scan."""
    found = list_classes(root, check)
    folders = list_folders(root, found, earlier, check)
    if found.classes == earlier.classes and _are_as_before(folders, earlier):
        return found.classes, None, {}

    total = sum(len(folder.images or ()) for folder in folders)
    files = (file for folder in folders if folder.images for file in earlier.with_headers(folder.path, folder.images, check))
    headers = read_headers(root, files, total, check)

    tables: list[pa.Table] = []
    records: dict[str, tuple[int, int, int, list[Omission]]] = {}
    for folder in folders:
        if folder.images is None:
            known = earlier.rows(folder.path)  # the class may have another number now
            rows = [replaced(known, "label", _labels(folder.label, len(known), check))]
        else:
            rows = list(_rows(folder.images, folder.label, headers, check, earlier.journal))
        usable = sum(each["problem"].null_count for each in rows)
        others = sum(map(len, rows)) - usable
        records[os.fsdecode(folder.path)] = folder.mtime_ns, usable, others, folder.omissions
        tables += rows

    return found.classes, pa.concat_tables(tables), records


def _are_as_before(folders: list[Folder], earlier: Earlier) -> bool:
    """Whether none was listed again, but for the root of class folders, in which nothing else lies now."""
    if [folder.path for folder in folders] != list(earlier.folders):
        return False
    for folder in folders:
        is_empty = folder.images == [] and not len(earlier.rows(folder.path))
        if folder.images is not None and not is_empty:
            return False
        if folder.omissions != earlier.folders[folder.path].omissions:
            return False
    return True


def _rows(images: list[bytes], label: int, headers: Iterator[Header], check: ScanOptions, journal: Journal) -> Iterator[pa.Table]:
    size = CHUNK[check.verify]
    for start in range(0, len(images), size):
        paths = images[start : start + size]
        labels = _labels(label, len(paths), check)
        rows = file_rows(paths, labels, list(islice(headers, len(paths))))
        journal.add(rows)
        yield rows


def _labels(label: int, images: int, check: ScanOptions) -> pa.Array:
    return pa.array([label] * images, pa.int32()) if check.with_labels else no_labels(images)


def scan_objects(url: str, check: ScanOptions) -> tuple[list[str], pa.Table, list[Omission]]:
    """Class names, rows and what is left out of images in an object store that are objects of their own, in class folders."""
    everything = list_all(url)
    refuse_other_objects(url, everything)
    images, omissions = sort_names(name for name in everything if not _is_in_housekeeping(name))
    if not images:
        extensions = ", ".join(IMAGE_EXTENSIONS)
        raise ManifestError(f"{url}: no shard there (NAME.tar or NAME.tfrecord), and no image ({extensions})")

    classes: list[str] = []
    if check.with_labels:
        classes, images, more = _sort_by_class(url, images, everything, check)
        omissions += more

    # As ImageFolder has them: by class, then by folder, then by file.
    numbers = {name: number for number, name in enumerate(classes)}
    number_of = {name: numbers.get(name.split("/")[0], -1) for name in images}
    images.sort(key=lambda name: (number_of[name], *os.path.split(name)))

    with ThreadPoolExecutor(check.workers or _REQUESTS) as pool:
        headers = pool.map(lambda name: _fetched_header(f"{url}/{name}", everything[name], check), images)
        rows = list(track(headers, "reading images", len(images), check.progress))
    labels = no_labels(len(images)) if not check.with_labels else pa.array([number_of[name] for name in images])
    return classes, file_rows([os.fsencode(name) for name in images], labels, rows), omissions


def _sort_by_class(
    url: str, images: list[str], everything: Iterable[str], check: ScanOptions
) -> tuple[list[str], list[str], list[Omission]]:
    """Class names, the images that are in a class folder, and what is left out for not being in one."""
    tops = {name.split("/")[0] for name in images if "/" in name}
    beside = [name for name in images if "/" not in name]
    if not tops:
        raise ManifestError(f"{url}: {beside[0]} is in no class folder; put the images of each class below a separate one")

    def subfolders(top: str) -> set[str]:
        inner = (name.split("/") for name in images if name.startswith(f"{top}/"))
        return {parts[1] for parts in inner if len(parts) > 2}

    classes = choose_classes(url, tops, check.classes, tops.__contains__, subfolders)
    unnamed = [name for name in images if "/" in name and name.split("/")[0] not in classes]
    hidden = {name.split("/")[0] for name in everything if is_image(name) and _is_in_housekeeping(name)}
    omissions = [
        *count_by_kind((BESIDE, name) for name in beside),
        *count_by_kind((UNNAMED, name) for name in unnamed),
        *count_by_kind((NUMBERED, name) for name in sorted(filter(is_housekeeping, hidden))),
    ]
    kept = set(beside) | set(unnamed)
    return classes, [name for name in images if name not in kept], omissions


def _fetched_header(url: str, version: FileVersion, check: ScanOptions) -> Header:
    size, rest = version
    if not size:
        return Header(0, rest, problem="empty file")
    try:
        part = read_object(url, 0, size if check.verify == "full" else min(size, _HEAD))
        header = examine(BytesIO(part), size, rest, check)
        unended = header.format == "PNG" and len(part) < size and read_object(url, size - 12, size)[4:8] != b"IEND"
        if (header.problem or unended) and len(part) < size:  # its header may be longer than usual
            header = examine(BytesIO(read_object(url, 0, size)), size, rest, check)
        return header
    except OSError as error:
        raise not_fetched(url, error) from None


def list_classes(root: Path, check: ScanOptions) -> ClassFolders:
    """The class folders, as torchvision's ImageFolder sorts them, and what lies beside them."""
    if not root.is_dir():
        raise ManifestError(f"{root}: no such folder; give one with a subfolder of images for each class")
    if not check.with_labels:
        return ClassFolders([], [""], [])

    entries = sorted((entry.name, entry.is_dir()) for entry in os.scandir(root))
    given = check.classes or ()
    folders = [name for name, is_folder in entries if is_folder and (name in given or not is_housekeeping(name))]
    images, omissions = sort_names(name for name, is_folder in entries if not is_folder)
    if not folders:
        _refuse_no_classes(root, [name for name, _ in entries])

    def has_images(name: str) -> bool:
        return next(_images_below(root, name), None) is not None

    def subfolders(name: str) -> set[str]:
        return {entry.name for entry in os.scandir(root / name) if entry.is_dir()}

    classes = choose_classes(root, folders, check.classes, has_images, subfolders)
    unnamed = [name for name in folders if name not in set(classes)]
    numbered = [name for name, is_folder in entries if is_folder and name not in folders and has_images(name)]
    omissions += [
        *count_by_kind((BESIDE, name) for name in images),
        *count_by_kind((UNNAMED, name) for folder in unnamed for name in _images_below(root, folder)),
        *count_by_kind((NUMBERED, name) for name in numbered),
    ]
    there = set(folders)
    return ClassFolders(classes, [name for name in classes if name in there], omissions)


def _refuse_no_classes(root: Path, files: list[str]) -> None:
    if embedded_files(root):
        raise ManifestError(f"{root}: its Parquet files hold the images; open them with Manifest.open or Manifest.from_table")
    if compressed := [name for name in sorted(files) if name.endswith(_COMPRESSED)]:
        raise ManifestError(f"{root / compressed[0]}: is compressed, so its images cannot be read one by one; unpack it to a .tar")
    raise ManifestError(describe_no_classes(root))


def choose_classes(
    place: Path | str,
    folders: Iterable[str],
    given: Sequence[str] | None,
    has_images: Callable[[str], bool],
    subfolders: Callable[[str], set[str]],
) -> list[str]:
    """The names of the classes, in the order of their numbers.

    Args:
        folders: names of the folders there, without housekeeping.
        given: the classes that the user names; None: each folder is a class.
        has_images, subfolders: what is known of a folder by its name.

    Raises:
        ManifestError: the folders are splits, or are not those that are named.
    """
    there = sorted(folders)
    if given is None:
        refuse_split_folders(place, there, has_images, subfolders)
        return there

    missing = [name for name in given if name not in there]
    unnamed = [name for name in there if name not in given]
    for name in missing:
        near = get_close_matches(name, unnamed, 1)
        if near or len(missing) == len(given):
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(there[:5])}"
            raise ManifestError(f"{place}: classes names {name!r}, and there is no such folder; {meant}")
    return list(given)


def list_folders(root: Path, found: ClassFolders, earlier: Earlier, check: ScanOptions) -> list[Folder]:
    """All folders with their images, in the order of ImageFolder. One that has not been touched since is not listed again.

    The first is the root; where images have labels, none of its own images is used.
    """
    base = os.fsencode(root)
    if not check.with_labels:
        folders = _walk(base, b"", -1, earlier, check)
        folders.sort(key=lambda folder: os.fsdecode(folder.path).split("/"))
        what = "no image in it"
    else:
        folders = [Folder(b"", -1, 0, [], found.omissions)]
        numbers = {name: number for number, name in enumerate(found.classes)}
        for name in found.folders:
            of_class = _walk(base, os.fsencode(name), numbers[name], earlier, check)
            folders += sorted(of_class, key=lambda folder: os.fsdecode(folder.path))
        what = f"its {len(found.folders)} class folders hold no image"

    if not any(len(earlier.rows(folder.path) if folder.images is None else folder.images) for folder in folders):
        raise ManifestError(f"{root}: {what} ({', '.join(IMAGE_EXTENSIONS)})")
    return folders


def _walk(base: bytes, start: bytes, label: int, earlier: Earlier, check: ScanOptions) -> list[Folder]:
    """A folder and all below it."""
    found, waiting = [], [start]
    while waiting:
        folder, subfolders = _list(base, waiting.pop(), label, earlier, check)
        found.append(folder)
        waiting += subfolders
    return found


def _list(base: bytes, path: bytes, label: int, earlier: Earlier, check: ScanOptions) -> tuple[Folder, list[bytes]]:
    """A folder, and the paths of its subfolders."""
    full = os.path.join(base, path)
    try:
        now, mtime_ns = time.time_ns(), os.stat(full).st_mtime_ns
        if earlier.has_all_of(path, mtime_ns, check):
            # without links of which the target is gone, which changes no folder's time
            there = [each for each in earlier.subfolders[path] if Path(os.fsdecode(os.path.join(base, each))).is_dir()]
            return Folder(path, label, mtime_ns, None, earlier.folders[path].omissions), there
        entries = [(entry.name, entry.is_dir()) for entry in os.scandir(full)]
    except OSError as error:
        raise ManifestError(f"{os.fsdecode(full)}: {os_problem(error)}; make it readable, or move it away") from None

    files = sorted(os.fsdecode(name) for name, is_folder in entries if not is_folder)
    images, omissions = sort_names(os.path.join(os.fsdecode(path), name) for name in files)
    settled = mtime_ns if now - mtime_ns > _SETTLED_NS else 0
    folder = Folder(path, label, settled, list(map(os.fsencode, images)), omissions)
    subfolders = [name for name, is_folder in entries if is_folder and not is_housekeeping(os.fsdecode(name))]
    return folder, [os.path.join(path, name) for name in subfolders]


def _images_below(root: Path, folder: str) -> Iterator[str]:
    """The images of a folder in the root, and of those below it; links are followed, and no folder is listed twice."""
    listed: set[tuple[int, int]] = set()
    for where, inner, files in os.walk(root / folder, followlinks=True):
        stat = os.stat(where)
        if (stat.st_dev, stat.st_ino) in listed:  # a link to a folder above it would lead around for ever
            inner.clear()
            continue
        listed.add((stat.st_dev, stat.st_ino))
        inner[:] = sorted(name for name in inner if not is_housekeeping(name))
        yield from sort_names(os.path.join(os.path.relpath(where, root), name) for name in sorted(files))[0]


def _is_in_housekeeping(path: str) -> bool:
    return any(map(is_housekeeping, path.split("/")[:-1]))
