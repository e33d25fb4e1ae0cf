"""The bytes of objects in a store (s3://, gs://, any URL of fsspec): `read_object`, `open_object`,
`download` and `write_object`.

    remote.py, listing.py ─▶ store_requests.py: attempts, deadlines ─▶ fsspec
                                 faults.py: which errors are final
"""

import io
import shutil
from contextlib import suppress
from typing import BinaryIO

from dali_pipes.data.range_file import RangeFile
from dali_pipes.data.shards.listing import CHANGED, FileVersion, read_version, version_of
from dali_pipes.data.shards.store_requests import request, request_once

_CHUNK = 16 * 2**20  # bytes per request
_READ_AHEAD = 2**20  # bytes of an open object


def read_object(url: str, start: int = 0, end: int | None = None) -> bytes:
    """Reads an object, or a range of its bytes.

    Raises:
        FileNotFoundError: it is not there.
        OSError: it cannot be read.
    """
    if end is None:
        return bytes(request(url, "cat_file", start=start, end=None))
    return _slice(_read_part(url, start, end), start, end)


def _read_part(url: str, start: int, end: int) -> bytes:
    """Reads a range of bytes; or the whole object, if its store cannot send a part."""
    return bytes(request(url, "cat_file", end - start, start=start, end=end))


def _slice(answer: bytes, start: int, end: int) -> bytes:
    return answer if len(answer) == end - start else answer[start:end]


def write_object(url: str, content: bytes) -> None:
    """Writes an object; raises OSError if that fails."""
    request(url, "pipe_file", len(content), content)


def open_object(url: str, size: int | None = None) -> BinaryIO:
    """Opens an object as a file whose parts are fetched as they are read.

    Opening and reading raise OSError if it cannot be reached.

    Args:
        size: of the object in bytes; None: its store is asked.
    """
    total, whole = version_of(url)[0] if size is None else size, b""

    def read(view: memoryview, at: int) -> int:
        nonlocal whole
        for start in range(0, len(view), _CHUNK):
            part = view[start : start + _CHUNK]
            first, last = at + start, at + start + len(part)
            answer = whole or _read_part(url, first, last)
            # the store cannot send a part: it is not asked again for each
            if len(answer) == total:
                whole = answer
            part[:] = answer[first:last] if whole else _slice(answer, first, last)
        return len(view)

    return io.BufferedReader(RangeFile(read, total), _READ_AHEAD)


def download(url: str, version: FileVersion, out: BinaryIO) -> None:
    """Writes an object into a file, part by part.

    Its version is asked for once, at the end, when that covers all parts.

    Raises:
        OSError: it is of another version, or cannot be read.
    """
    try:
        shutil.copyfileobj(open_object(url, version[0]), out, _CHUNK)
        now = version_of(url)
    except OSError:
        now = version
        # one request without a second attempt: did it fail because the object was replaced?
        with suppress(Exception):
            now = read_version(request_once(url, "info"))
        if now == version:
            raise

    if now != version:
        raise OSError(CHANGED)
