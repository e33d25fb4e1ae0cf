"""Images in an object store that are objects of their own, in a folder for each class: their names and headers, read by threads."""

import os
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import pyarrow as pa

from dali_pipes.data.scanning.files import file_rows
from dali_pipes.data.scanning.headers import IMAGE_EXTENSIONS, Header, ScanOptions, examine, not_fetched
from dali_pipes.data.shards.remote import FileVersion, list_all, read_object
from dali_pipes.errors import ManifestError
from dali_pipes.system.progress import track

_THREADS = 32  # requests at the same time
_HEAD = 2**16  # bytes that nearly all headers fit into


def scan_objects(url: str, check: ScanOptions, workers: int | None, progress: bool) -> tuple[list[str], pa.Table]:
    """Class names, and rows in the order of torchvision's ImageFolder.

    Args:
        workers: requests at the same time; None: 32.

    Raises:
        ManifestError: no image there, or none in a folder; one that cannot be fetched.
    """
    found = {name: version for name, version in list_all(url).items() if name.lower().endswith(IMAGE_EXTENSIONS)}
    if not found:
        raise ManifestError(f"{url}: no shard there (NAME.tar or NAME.tfrecord), and no image ({', '.join(IMAGE_EXTENSIONS)})")
    if outside := [name for name in found if "/" not in name]:
        raise ManifestError(f"{url}: {outside[0]} is in no class folder; put the images of each class below a separate one")
    names = sorted(found, key=lambda name: (name.split("/")[0], *os.path.split(name)))
    classes = sorted({name.split("/")[0] for name in names})
    numbers = {name: number for number, name in enumerate(classes)}
    with ThreadPoolExecutor(workers or _THREADS) as pool:
        headers = list(
            track(
                pool.map(lambda name: _header(f"{url}/{name}", found[name], check), names), "reading images", len(names), progress
            )
        )
    labels = pa.array([numbers[name.split("/")[0]] for name in names])
    return classes, file_rows([os.fsencode(name) for name in names], labels, headers)


def _header(url: str, version: FileVersion, check: ScanOptions) -> Header:
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
