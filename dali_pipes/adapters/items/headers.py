"""`header_of`: what a plan must know of a picture, from its file's header."""

import os
from functools import lru_cache
from io import BytesIO

from dali_pipes.data.image_files.headers import Header, describe_os_error, examine, read_header
from dali_pipes.data.reader import PROCESS_ERRNOS, try_twice

# files whose headers a process keeps; each takes about half a KiB
_KEPT = 2**16


def header_of(source: str | bytes) -> Header:
    """The header of an image file or of an encoded image. What is wrong with it is its `problem`.

    That of a file is read again if the file has changed, or after those of very many others. A
    read that fails is tried once more after a moment, since a file server may have been away.

    Raises:
        OSError: this process has too many files open, or no memory, which is no file's fault.
    """
    if isinstance(source, bytes):
        return examine(BytesIO(source), len(source), 0)
    try:
        return try_twice(lambda: _read(source))
    except OSError as error:
        if error.errno in PROCESS_ERRNOS:
            raise
        return Header(0, 0, problem=describe_os_error(error))


def _read(path: str) -> Header:
    stat = os.stat(path)
    return _read_version(path, stat.st_size, stat.st_mtime_ns)


# an OSError is not kept
@lru_cache(maxsize=_KEPT)
def _read_version(path: str, size: int, mtime_ns: int) -> Header:
    return read_header(path, raises=True)
