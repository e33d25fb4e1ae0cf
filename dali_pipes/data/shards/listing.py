"""What is in an object store: `list_objects`, `find_objects` and `look_up` return a `Listing`,
names with versions.

A version tells whether a local file or an object was replaced (`version_of`).
"""

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

from dali_pipes.data.shards.addresses import encode_url, is_remote, is_web, path_in_store
from dali_pipes.data.shards.store_requests import is_found_by_folder, request
from dali_pipes.errors import ManifestError

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


_AT_ONCE = 32  # requests about single objects


class Listing(Mapping[str, FileVersion]):
    """The objects under a URL: a mapping from name to version. Iterating asks the store nothing.

    A listing may lack versions, or give other ones than the store gives of a single object. Then
    each object is asked for by itself, since versions are later compared with those of single
    objects.

    Args:
        url: the place, without a slash at its end.
        infos: what the store says of each object; None: it was not asked.
    """

    def __init__(self, url: str, infos: Mapping[str, dict[str, Any] | None]):
        self._url, self._infos = url, infos
        self._versions: dict[str, FileVersion] = {}

    def __getitem__(self, name: str) -> FileVersion:
        if name not in self._infos:
            raise KeyError(name)
        return self.versions([name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def versions(self, names: Iterable[str]) -> dict[str, FileVersion]:
        """The versions of these objects.

        Raises:
            ManifestError: the store does not say how large one is.
        """
        names = list(names)
        missing = [name for name in names if name not in self._versions]
        if missing:
            # the listing is trusted if it says the same of one object as the store does
            first, *others = missing
            self._versions[first] = self._ask(first)
            listed = {name: version_if_listed(self._infos[name]) for name in missing}
            if listed[first] == self._versions[first] and None not in listed.values():
                self._versions |= {name: version for name, version in listed.items() if version}
            else:
                with ThreadPoolExecutor(_AT_ONCE) as pool:
                    self._versions |= zip(others, pool.map(self._ask, others), strict=True)

        return {name: self._versions[name] for name in names}

    def _ask(self, name: str) -> FileVersion:
        try:
            return version_of(f"{self._url}/{name}")
        except OSError as error:
            raise ManifestError(f"{self._url}/{name}: {error.strerror or error}") from None


def list_objects(url: str) -> Listing:
    """Lists the objects directly under `url`.

    Raises:
        ManifestError: there is nothing.
    """
    # a web server without listings answers with nothing, or with an error
    infos = _list(url, "ls")
    if not infos and is_web(url):
        do = (
            "name the shards by a pattern with braces, such as shard-{000000..000063}.tar, or "
            "download them"
        )
        raise ManifestError(f"{url}: its server lists no files there; {do}")

    if infos is None:
        raise ManifestError(
            f"{url}: no such place in the object store; is there such a bucket, and such a "
            "path in it?"
        )

    return Listing(url.rstrip("/"), {_name_of(info): info for info in infos if _is_object(info)})


def find_objects(url: str) -> Listing:
    """Lists all objects below `url`, in folders too; their names are the paths from `url` on."""
    if is_found_by_folder(url):
        return Listing(url.rstrip("/"), dict(_walk(url.rstrip("/"))))

    # fsspec returns full paths, and names are relative to the URL
    base = path_in_store(url).strip("/") + "/"
    infos = {
        path_in_store(name).lstrip("/"): info
        for name, info in (_list(url, "find") or {}).items()
        if _is_object(info)
    }
    # an object is found below itself
    infos.pop(base.rstrip("/"), None)
    return Listing(url.rstrip("/"), {name.removeprefix(base): infos[name] for name in infos})


def _walk(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each object below `url` with its path from there.

    Raises:
        ManifestError: a folder cannot be listed.
    """
    folders = [""]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while folders:
            listed = list(pool.map(lambda folder: _list(url + folder, "ls") or [], folders))
            inside = [
                (folder, info)
                for folder, infos in zip(folders, listed, strict=True)
                for info in infos
            ]

            yield from (
                # folders begin with a slash here, and names do not
                (f"{folder}/{_name_of(info)}"[1:], info)
                for folder, info in inside
                if _is_object(info)
            )

            folders = [
                f"{folder}/{_name_of(info)}"
                for folder, info in inside
                if info["type"] == "directory" and not _is_link_up(url + folder, info)
            ]


def _is_link_up(url: str, info: dict[str, Any]) -> bool:
    """Whether an entry is the folder itself or one above it.

    A web server's page of a folder may link to these.
    """
    place, name = (path_in_store(address).strip("/") for address in (encode_url(url), info["name"]))
    return name == place or name.rsplit("/", 1)[-1] in (".", "..")


def _name_of(info: dict[str, Any]) -> str:
    """The last part of an object's path, as a person reads it."""
    name = str(info["name"]).rstrip("/").rsplit("/", 1)[-1]
    plain = unquote(name) if is_web(info["name"]) else name
    # a name with such characters must stay encoded to be one part of a URL
    return name if set(plain) & set("%?#/") else plain


def look_up(folder: str, names: Iterable[str]) -> Listing:
    """Finds which of the names are there, without a listing.

    Raises:
        ManifestError: the store does not say.
    """
    names = list(names)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        there = list(pool.map(lambda name: is_object(f"{folder}/{name}"), names))
    return Listing(
        folder, {name: None for name, is_there in zip(names, there, strict=True) if is_there}
    )


def is_object(url: str) -> bool:
    """Whether there is an object with exactly this name."""
    try:
        info = request(url, "info")
        return _is_object(info) and not is_page(url, info)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ManifestError(f"{url}: {error}") from None


def is_there(url: str) -> bool:
    """Whether there is an object or a folder with exactly this name."""
    return _list(url, "ls") is not None


def _list(url: str, method: str) -> Any:
    try:
        return request(url, method, detail=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManifestError(f"{url}: cannot be listed ({error})") from None


def _is_object(info: dict[str, Any]) -> bool:
    # a web server's page of a folder has links that sort it, such as ?C=M;O=A
    sorts = is_web(info["name"]) and "?" in info["name"]
    return info["type"] == "file" and not sorts
