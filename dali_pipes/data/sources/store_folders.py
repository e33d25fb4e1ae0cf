"""Class folders in an object store: lists the images, each an object of its own, and returns their
manifest rows in the order of ImageFolder.

The classes and what is left out are those that folders.py finds in the same tree on a disk.
Only the beginning of each image is fetched, and the last bytes of a PNG too.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader

import pyarrow as pa

from dali_pipes.checks import check_names
from dali_pipes.data.image_files.headers import (
    IMAGE_EXTENSIONS,
    Header,
    ScanOptions,
    examine,
    fetch_error,
    is_image,
)
from dali_pipes.data.omissions import Omission, count_by_kind
from dali_pipes.data.range_file import RangeFile
from dali_pipes.data.shards.listing import FileVersion, find_objects
from dali_pipes.data.shards.remote import read_object
from dali_pipes.data.sources.folders import Folder, make_labels, sort_by_class
from dali_pipes.data.sources.layouts import refuse_other_objects
from dali_pipes.data.sources.names import HOUSEKEEPING_FOLDERS, is_housekeeping, select_images
from dali_pipes.data.sources.rows.earlier import EarlierScan, known_headers
from dali_pipes.data.sources.rows.files import file_rows
from dali_pipes.errors import ManifestError
from dali_pipes.system.progress import track

_REQUESTS = 32  # sent at the same time
_HEAD = 2**16  # bytes that nearly all headers fit into
_PNG_END = 12  # bytes of the last chunk of a PNG (IEND)


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
    folders = _list_folders(everything)
    holding = [folder for folder in folders if folder.images]
    if not holding:
        extensions = ", ".join(IMAGE_EXTENSIONS)
        raise ManifestError(
            f"{url}: no shard there (NAME.tar or NAME.tfrecord), and no image ({extensions})"
        )

    classes: list[str] = []
    omissions = [omission for folder in folders for omission in folder.omissions]
    if check.with_labels:
        if holding == folders[:1]:
            raise ManifestError(
                f"{url}: {(folders[0].images or [''])[0]} is in no class folder; put the images of "
                "each class below a separate one"
            )
        # a folder in which no image is has no class, since a store has no folders of their own
        top = folders[0]._replace(omissions=omissions)
        below = [folder for folder in holding if folder.path]
        numbered = _list_numbered(everything)
        named = None if check.classes is None else check_names("classes", check.classes)
        classes, holding = sort_by_class(url, [top, *below], numbered, EarlierScan(), named)
        omissions = holding[0].omissions

    # with their versions, by which a changed object is noticed when it is read
    images = [image for folder in holding for image in folder.images or ()]
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

    labels = pa.concat_arrays(
        [make_labels(folder.label, len(folder.images or ()), check) for folder in holding]
    )
    return classes, file_rows(list(map(os.fsencode, images)), labels, rows), omissions


def _list_folders(names: Iterable[str]) -> list[Folder]:
    """Returns the folders in which objects of these names are, the root first, in the order of a
    walk. What is left out besides files is of the root.
    """
    by_folder: dict[str, list[str]] = {"": []}
    housekeeping: set[str] = set()
    for name in names:
        *above, _ = name.split("/")
        depth = next((depth for depth, each in enumerate(above) if is_housekeeping(each)), None)
        if depth is None:
            by_folder.setdefault("/".join(above), []).append(name)
        else:
            housekeeping.add("/".join(above[: depth + 1]))

    folders = [
        Folder(path, 0, *select_images(sorted(files)))
        for path, files in sorted(by_folder.items(), key=lambda pair: pair[0].split("/"))
    ]
    folders[0].omissions.extend(
        count_by_kind(((HOUSEKEEPING_FOLDERS, f"{each}/") for each in sorted(housekeeping)), "file")
    )
    return folders


def _list_numbered(names: Iterable[str]) -> list[str]:
    """Returns the housekeeping folders to which ImageFolder gives numbers, since images are in
    them.
    """
    tops = {name.split("/")[0] for name in names if "/" in name and is_image(name)}
    return sorted(filter(is_housekeeping, tops))


def _fetched_header(url: str, version: FileVersion, check: ScanOptions) -> Header:
    size, rest = version
    # the beginning is one request and has nearly every header; a full check decodes the image
    beginning = size if check.verify == "full" else min(size, _HEAD)
    content, failed = b"", list[OSError]()

    def read(view: memoryview, at: int) -> int:
        nonlocal content
        end = at + len(view)
        try:
            if end == size > len(content) and len(view) == _PNG_END:
                view[:] = read_object(url, at, end)
                return len(view)
            # with its size, so that an answer that is cut off is an error
            if end > len(content):
                content = read_object(url, 0, beginning if end <= beginning else size)
        except OSError as error:
            failed.append(error)
            raise
        view[:] = content[at:end]
        return len(view)

    header = examine(BufferedReader(RangeFile(read, size)), size, rest, check)
    # Pillow takes such an error for a broken image, or ignores it
    if failed:
        raise fetch_error(url, failed[0]) from None
    return header
