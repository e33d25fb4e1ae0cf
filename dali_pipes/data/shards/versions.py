"""Versions of local files and of objects, by which a file that was replaced is noticed."""

import errno
import os
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any

from dali_pipes.data.shards.addresses import is_remote, is_web
from dali_pipes.data.shards.store_requests import request

# size in bytes; modification time in nanoseconds, or a number made of the ETag
FileVersion = tuple[int, int]
CHANGED = "the shard has changed since it was scanned; scan again"
# the keys of fsspec's file systems for the modification time
_TIMES = (
    "LastModified",
    "last_modified",
    "Last-Modified",
    "updated",
    "modified",
    "mtime",
    "created",
)
_ETAGS = ("ETag", "etag", "blob_id", "sha", "Content-MD5")


def is_page(url: str, info: dict[str, Any]) -> bool:
    """Whether a web server answers with a page, and not with an object.

    The page says that nothing is there, or asks for a login.
    """
    return is_web(url) and info.get("mimetype") == "text/html"


def version_of(file: str) -> FileVersion:
    """The version of a local file or of an object.

    Raises:
        OSError: it cannot be reached.
    """
    if not is_remote(file):
        stat = os.stat(file)
        return stat.st_size, stat.st_mtime_ns
    info = request(file, "info")
    if is_page(file, info):
        raise FileNotFoundError(errno.ENOENT, "its server answers with a web page", file)
    return read_version(info)


def version_if_listed(info: dict[str, Any] | None) -> FileVersion | None:
    return read_version(info) if info and info.get("size") is not None else None


def read_version(info: dict[str, Any]) -> FileVersion:
    if info.get("size") is None:
        do = "download it and give the local path"
        raise OSError(
            "its server does not say how large it is (no Content-Length), so what comes "
            f"cannot be checked; {do}"
        )

    # an ETag says more than a time, which copying a bucket changes
    size = int(info["size"])
    if etag := next((info[name] for name in _ETAGS if info.get(name)), ""):
        return size, _number(str(etag).removeprefix("W/").strip('"'))

    changed = next((info[name] for name in _TIMES if info.get(name) is not None), 0)
    if isinstance(changed, str):
        try:
            changed = _time(changed)
        except ValueError:
            return size, _number(str(changed))

    if isinstance(changed, datetime):
        changed = (changed if changed.tzinfo else changed.replace(tzinfo=UTC)).timestamp()
    # to microseconds, the precision that both a float and every store have
    return size, round(changed * 1_000_000) * 1_000


def _time(text: str) -> datetime:
    with suppress(ValueError):
        return datetime.fromisoformat(text)
    return parsedate_to_datetime(text)  # the form of HTTP's headers


def _number(text: str) -> int:
    # 7 bytes, since the number also becomes the modification time of the copy
    return int.from_bytes(sha256(text.encode()).digest()[:7], "big")
