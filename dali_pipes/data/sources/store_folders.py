"""Class folders in an object store: lists the images, each an object of its own, and returns their
manifest rows in the order of ImageFolder.

The classes and what is left out are those that folders.py finds in the same tree on a disk.
Only the beginning of each image is fetched, and the last bytes of a PNG too.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import pyarrow as pa

from dali_pipes.checks import check_names
from dali_pipes.data.composed import composed
from dali_pipes.data.image_files.headers import (
    IMAGE_EXTENSIONS,
    Header,
    ScanOptions,
    examine,
    fetch_error,
    is_image,
)
from dali_pipes.data.labels.reader import no_labels
from dali_pipes.data.omissions import Omission, count_by_kind
from dali_pipes.data.shards.listing import FileVersion, find_objects
from dali_pipes.data.shards.remote import read_object
from dali_pipes.data.sources.layouts import refuse_other_objects
from dali_pipes.data.sources.names import (
    BESIDE,
    HOUSEKEEPING_FOLDERS,
    NUMBERED,
    UNNAMED,
    choose_classes,
    is_housekeeping,
    name_folders,
    sort_names,
)
from dali_pipes.data.sources.rows.earlier import known_headers
from dali_pipes.data.sources.rows.files import file_rows
from dali_pipes.errors import ManifestError
from dali_pipes.system.progress import track

_REQUESTS = 32  # sent at the same time
_HEAD = 2**16  # bytes that nearly all headers fit into
_PNG, _PNG_END = b"\x89PNG", 12  # how a PNG starts, and the bytes of its last chunk (IEND)


def scan_objects(
    url: str, check: ScanOptions, before: pa.Table | None = None
) -> tuple[list[str], pa.Table, list[Omission]]:
    """Returns class names, rows and what is left out, for images below a URL in class folders.

    Args:
        before: the rows of an earlier scan; of an object that has its version there, nothing is
            fetched.
    """
    everything = find_objects(url)
    refuse_other_objects(url, everything)
    images, omissions = sort_names(name for name in everything if not _is_in_housekeeping(name))
    aside = {_housekeeping_folder(name) for name in everything if _is_in_housekeeping(name)}
    omissions += count_by_kind(
        ((HOUSEKEEPING_FOLDERS, f"{folder}/") for folder in sorted(aside)), "file"
    )
    if not images:
        extensions = ", ".join(IMAGE_EXTENSIONS)
        raise ManifestError(
            f"{url}: no shard there (NAME.tar or NAME.tfrecord), and no image ({extensions})"
        )

    classes: list[str] = []
    if check.with_labels:
        classes, images, more = _sort_by_class(url, images, everything, check)
        omissions += more

    # As ImageFolder sorts them: by class, then by folder, then by file.
    numbers = {name: number for number, name in enumerate(classes)}
    number_of = {name: numbers.get(composed(name.split("/")[0]), -1) for name in images}
    images.sort(key=lambda name: (number_of[name], *os.path.split(name)))

    # with their versions, by which a changed object is noticed when it is read
    versions = everything.versions(images)
    known = known_headers(before, check) if before is not None else {}

    def header_of(name: str) -> Header:
        header = known.get(os.fsencode(name))
        if header and (header.bytes, header.mtime_ns) == versions[name]:
            return header
        return _fetched_header(f"{url}/{name}", versions[name], check)

    with ThreadPoolExecutor(check.workers or _REQUESTS) as pool:
        headers = pool.map(header_of, images)
        rows = list(track(headers, "reading images", len(images), check.progress))

    labels = (
        no_labels(len(images))
        if not check.with_labels
        else pa.array([number_of[name] for name in images])
    )
    return classes, file_rows([os.fsencode(name) for name in images], labels, rows), omissions


def _sort_by_class(
    url: str, images: list[str], everything: Iterable[str], check: ScanOptions
) -> tuple[list[str], list[str], list[Omission]]:
    """Returns class names, the images in class folders, and what is left out as it is in none."""
    tops = {name.split("/")[0] for name in images if "/" in name}
    beside = [name for name in images if "/" not in name]
    if not tops:
        raise ManifestError(
            f"{url}: {beside[0]} is in no class folder; put the images of each class below a "
            "separate one"
        )

    folder_of = name_folders(url, tops)
    named = None if check.classes is None else check_names("classes", check.classes)

    def subfolders(name: str) -> set[str]:
        inner = (path.split("/") for path in images if path.startswith(f"{folder_of[name]}/"))
        return {parts[1] for parts in inner if len(parts) > 2}

    classes = choose_classes(url, folder_of, named, folder_of.__contains__, subfolders)
    unnamed = [
        name for name in images if "/" in name and composed(name.split("/")[0]) not in classes
    ]

    # ImageFolder numbers such folders as classes if they hold images, so the user is told.
    hidden = {
        name.split("/")[0] for name in everything if is_image(name) and _is_in_housekeeping(name)
    }
    omissions = [
        *count_by_kind((BESIDE, name) for name in beside),
        *count_by_kind((UNNAMED, name) for name in unnamed),
        *count_by_kind(
            ((NUMBERED, name) for name in sorted(filter(is_housekeeping, hidden))), "folder"
        ),
    ]

    kept = set(beside) | set(unnamed)
    return classes, [name for name in images if name not in kept], omissions


class _Ends(BytesIO):
    """A file whose beginning and end were fetched, and nothing between them.

    Reading anything else fails, and `lacks` records it: Pillow ignores tags of a TIFF that it
    cannot read, so its result would be incomplete.

    Args:
        size: bytes of the whole object.
    """

    def __init__(self, beginning: bytes, end: bytes, size: int):
        super().__init__(beginning)
        self._length, self._end, self._size, self.lacks = len(beginning), end, size, False

    def read(self, size: int | None = -1, /) -> bytes:
        start = self.tell()
        stop = self._size if size is None or size < 0 else min(start + size, self._size)
        if stop <= self._length:
            return super().read(size)

        # not in the beginning: the end has it, or nothing has
        place = start - (self._size - len(self._end))
        if place < 0:
            self.lacks = True
            raise OSError("not fetched")

        part = self._end[place : stop - start + place]
        self.seek(start + len(part))
        return part

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        if whence == os.SEEK_END:
            return super().seek(self._size + offset)
        return super().seek(offset, whence)


def _fetched_header(url: str, version: FileVersion, check: ScanOptions) -> Header:
    size, rest = version
    if not size:
        return Header(0, rest, problem="empty file")
    try:
        # the beginning of an object is one request, and has nearly every header
        part = read_object(url, 0, size if check.verify == "full" else min(size, _HEAD))
        if len(part) == size:
            return examine(BytesIO(part), size, rest, check)

        end = read_object(url, size - _PNG_END, size) if part.startswith(_PNG) else b""
        file = _Ends(part, end, size)
        header = examine(file, size, rest, check)

        # The header may be longer than usual: read the whole object.
        if header.problem or file.lacks:
            # with its size, so that an answer that is cut off is an error
            header = examine(BytesIO(read_object(url, 0, size)), size, rest, check)
        return header
    except OSError as error:
        raise fetch_error(url, error) from None


def _is_in_housekeeping(path: str) -> bool:
    return any(map(is_housekeeping, path.split("/")[:-1]))


def _housekeeping_folder(path: str) -> str:
    """Returns the first folder in a path that is housekeeping."""
    parts = path.split("/")
    depth = next(depth for depth, part in enumerate(parts) if is_housekeeping(part))
    return "/".join(parts[: depth + 1])
