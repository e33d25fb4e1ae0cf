"""Object stores (s3://, gs://, any URL of fsspec): listing, reading and writing, with patience for
networks.

`list_objects`, `find_objects` and `look_up` return a `Listing`, names with versions; `read_object`,
`open_object` and `download` return bytes. All go through `_request`: a request that fails is sent
again after a pause. The pause grows and has a random part, so that many ranks do not come back at
once. Each request has a deadline, since an answer of one byte a second never reaches the time-outs
of the libraries below. faults.py says which errors are final.
"""

import errno
import io
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, unquote

from dali_pipes.data.range_file import RangeFile
from dali_pipes.data.shards import traffic
from dali_pipes.data.shards.faults import Fault, judge, shorten
from dali_pipes.errors import ConfigError, ManifestError

T = TypeVar("T")
# size in bytes; modification time in nanoseconds, or a number made of the ETag
FileVersion = tuple[int, int]

CHANGED = "the shard has changed since it was scanned; scan again"
_CHUNK = 16 * 2**20  # bytes per request
_READ_AHEAD = 2**20  # bytes of an open object
# each pause is about twice as long as the one before; 42 s in all
_ATTEMPTS, _FIRST_PAUSE_S, _MAX_PAUSE_S = 10, 0.2, 10.0
# for each request while none succeeds, so that a store that is away is reported within minutes
_ATTEMPTS_WHILE_FAILING = 2
_QUIET_ATTEMPTS = 3  # of a request, before a warning says what it waits for
_DEADLINE_S, _SLOWEST = 30.0, 100_000  # of a request: seconds, plus one for so many bytes
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
_SAFE = "/:?&=+,;@!$'()*~[]%"  # what stays in a web address; % begins what is encoded already
_AT_ONCE = 32  # requests about single objects
_PACKAGES = {
    "http": "aiohttp",
    "https": "aiohttp",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "hf": "huggingface_hub",
}

log = logging.getLogger(__name__)
# stores in which a request failed in all attempts, and none has succeeded since
_failing_stores: set[str] = set()
# The file systems, kept alive so that a forked process does not end those of its parent: fsspec
# would close their connections there and take them out of the parent's epoll, and the parent would
# wait for their answers until the deadline.
_file_systems: dict[int, Any] = {}
_answering_stores: set[str] = set()  # stores that have answered a request


def is_remote(source: str | os.PathLike[str]) -> bool:
    """Whether a source is a URL."""
    return "://" in os.fspath(source)


def absolute(root: str | os.PathLike[str]) -> Path | str:
    """The absolute path of a folder, or the URL as it is."""
    return str(root) if is_remote(root) else Path(os.path.abspath(root))


class NoPermissionError(OSError):
    """The store does not let this user do it."""


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
            listed = {name: _version_if_listed(self._infos[name]) for name in missing}
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
    if _is_found_by_folder(url):
        return Listing(url.rstrip("/"), dict(_walk(url.rstrip("/"))))

    base = _path_of(url).strip("/") + "/"
    found = (_list(url, "find") or {}).items()
    named = {
        _path_of(name).lstrip("/").removeprefix(base): info
        for name, info in found
        if _is_object(info)
    }
    return Listing(url.rstrip("/"), named)


def _is_found_by_folder(url: str) -> bool:
    """Whether fsspec's own `find` lists the store folder by folder.

    It then silently leaves out a folder that it cannot list, so `_walk` is used instead.
    """
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem

    kind = type(_connect(url)[0])
    return (
        kind.find is AbstractFileSystem.find
        or getattr(kind, "_find", None) is AsyncFileSystem._find
    )


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
    place, name = (_path_of(each).strip("/") for each in (_encode_url(url), info["name"]))
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


def is_web(url: str | os.PathLike[str]) -> bool:
    """Whether a URL's store is a web server.

    A web server may have no listing, and may answer with a page for what is not there.
    """
    return os.fspath(url).startswith(("http://", "https://"))


def is_object(url: str) -> bool:
    """Whether there is an object with exactly this name."""
    try:
        info = _request(url, "info")
        return _is_object(info) and not _is_page(url, info)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ManifestError(f"{url}: {error}") from None


def is_there(url: str) -> bool:
    """Whether there is an object or a folder with exactly this name."""
    return _list(url, "ls") is not None


def _list(url: str, method: str) -> Any:
    try:
        return _request(url, method, detail=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManifestError(f"{url}: cannot be listed ({error})") from None


def _is_object(info: dict[str, Any]) -> bool:
    # a web server's page of a folder has links that sort it, such as ?C=M;O=A
    sorts = is_web(info["name"]) and "?" in info["name"]
    return info["type"] == "file" and not sorts


def _is_page(url: str, info: dict[str, Any]) -> bool:
    """Whether a web server answers with a page, and not with an object.

    The page says that nothing is there, or asks for a login.
    """
    return is_web(url) and info.get("mimetype") == "text/html"


def _encode_url(url: str) -> str:
    return quote(url, safe=_SAFE) if is_web(url) else url


def _path_of(url: str) -> str:
    return url.rpartition("://")[2]


def version_of(file: str) -> FileVersion:
    """The version of a local file or of an object.

    Raises:
        OSError: it cannot be reached.
    """
    if not is_remote(file):
        stat = os.stat(file)
        return stat.st_size, stat.st_mtime_ns
    info = _request(file, "info")
    if _is_page(file, info):
        raise FileNotFoundError(errno.ENOENT, "its server answers with a web page", file)
    return _version(info)


def read_object(url: str, start: int = 0, end: int | None = None) -> bytes:
    """Reads an object, or a range of its bytes.

    Raises:
        FileNotFoundError: it is not there.
        OSError: it cannot be read.
    """
    if end is None:
        return bytes(_request(url, "cat_file", start=start, end=None))
    return _slice(_read_part(url, start, end), start, end)


def _read_part(url: str, start: int, end: int) -> bytes:
    """Reads a range of bytes; or the whole object, if its store cannot send a part."""
    return bytes(_request(url, "cat_file", end - start, start=start, end=end))


def _slice(answer: bytes, start: int, end: int) -> bytes:
    return answer if len(answer) == end - start else answer[start:end]


def write_object(url: str, content: bytes) -> None:
    """Writes an object; raises OSError if that fails."""
    _request(url, "pipe_file", len(content), content)


def open_object(url: str) -> BinaryIO:
    """Opens an object as a file whose parts are fetched as they are read.

    Opening and reading raise OSError if it cannot be reached.
    """

    size, whole = version_of(url)[0], b""

    def read(view: memoryview, at: int) -> int:
        nonlocal whole
        for start in range(0, len(view), _CHUNK):
            part = view[start : start + _CHUNK]
            first, last = at + start, at + start + len(part)
            answer = whole or _read_part(url, first, last)
            # the store cannot send a part: it is not asked again for each
            if len(answer) == size:
                whole = answer
            part[:] = answer[first:last] if whole else _slice(answer, first, last)
        return len(view)

    return io.BufferedReader(RangeFile(read, size), _READ_AHEAD)


def download(url: str, version: FileVersion, write: Callable[[bytes], object]) -> None:
    """Reads an object part by part and passes each part to `write`.

    Its version is asked for once, at the end, when that covers all parts.

    Raises:
        OSError: it is of another version, or cannot be read.
    """
    try:
        for start in range(0, version[0], _CHUNK):
            part = _read_part(url, start, end := min(start + _CHUNK, version[0]))
            if len(part) == end - start:
                write(part)
                continue
            if len(part) != version[0]:
                raise OSError(CHANGED)
            write(part[start:])  # the store sends no parts, and so all of it
            break
        now = version_of(url)
    except OSError:
        now = version
        # one request without a second attempt: did it fail because the object was replaced?
        with suppress(Exception):
            now = _version(_send(url, "info", _DEADLINE_S, (), {}))
        if now == version:
            raise

    if now != version:
        raise OSError(CHANGED)


def _request(url: str, method: str, size: int = 0, *given: Any, **options: Any) -> Any:
    """Sends a request to the object store, and sends it again if it fails; returns the answer.

    Args:
        method: a method of fsspec's file systems.
        size: how many bytes are asked for or sent, if that is known.

    Raises:
        FileNotFoundError: there is no such object.
        NoPermissionError: the store refuses it.
        OSError: it failed in all attempts.
    """
    failed, store = 0, "/".join(url.split("/")[:3])
    while True:
        try:
            answer = _send(url, method, _DEADLINE_S + size / _SLOWEST, given, options)
            # a longer answer is the whole object, from a server that sends no parts
            if (
                size
                and method == "cat_file"
                and len(answer) != size
                and len(answer) < options["end"]
            ):
                raise OSError(f"{len(answer):,} bytes came instead of {size:,}")
            _failing_stores.discard(store)
            _answering_stores.add(store)
            return answer
        except ConfigError:
            raise
        except Exception as error:  # a broken connection looks different with each store
            failed += 1
            fault = judge(error, url, store in _answering_stores) or Fault(_ATTEMPTS)
            if fault.is_missing:
                _answering_stores.add(store)
                raise FileNotFoundError(errno.ENOENT, "no such object", url) from None

            hopeless = store in _failing_stores and fault.attempts > _ATTEMPTS_WHILE_FAILING
            attempts = min(_ATTEMPTS, _ATTEMPTS_WHILE_FAILING if hopeless else fault.attempts)
            why = shorten(error)

            if failed >= attempts:
                if fault.is_refused:
                    raise NoPermissionError(fault.words) from None
                _failing_stores.add(store)
                raise OSError(fault.words or f"cannot be fetched ({failed} times: {why})") from None

            log.log(
                logging.WARNING if fault.soon or failed >= _QUIET_ATTEMPTS else logging.INFO,
                "%s: attempt %d of %d failed (%s); trying again",
                *(url, failed, attempts, why),
            )
            traffic.add(retries=1)
            time.sleep(
                min(_FIRST_PAUSE_S * 2 ** (failed - 1), _MAX_PAUSE_S) * random.uniform(0.5, 1.5)
            )


def _send(
    url: str, method: str, deadline_s: float, given: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Sends one request and returns the answer.

    Raises:
        TimeoutError: after the deadline, if the file system can be interrupted.
        ConfigError: a package is missing.
    """
    files, path = _connect(url)
    import fsspec
    from fsspec.asyn import AsyncFileSystem, sync

    try:
        if not isinstance(files, AsyncFileSystem):
            return getattr(files, method)(path, *given, **options)
        return sync(
            files.loop, getattr(files, f"_{method}"), path, *given, timeout=deadline_s, **options
        )
    except ImportError as error:  # some libraries import their parts when they are first needed
        raise ConfigError(f"{url}: {shorten(error)}; install it") from None
    except fsspec.exceptions.FSTimeoutError:
        raise TimeoutError(f"no whole answer within {deadline_s:.0f} s") from None


def _connect(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Raises:
        ConfigError: there is none, or its package is missing.
    """
    scheme = url.split("://")[0]
    try:
        import fsspec

        files, path = _file_system(fsspec, scheme, _encode_url(url))
    except ImportError as error:
        install = _PACKAGES.get(
            scheme,
            "'dali_pipes[s3]'" if scheme.startswith("s3") else "the package that it asks for",
        )
        raise ConfigError(
            f"{url} needs fsspec with its package for {scheme}:// ({error}); pip install {install}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{url}: {shorten(error)}") from None

    _file_systems[id(files)] = files
    return files, path


def _file_system(fsspec: Any, scheme: str, url: str) -> tuple[Any, str]:
    """The file system of this process, and the path in it.

    That of S3 sends a request once, since `_request` counts the attempts.
    """
    if scheme not in ("s3", "s3a"):
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    configured = fsspec.config.conf
    given = (configured.get("s3", {}) | configured.get("s3a", {})).get("config_kwargs", {})
    once = {"retries": {"total_max_attempts": 1}} | given
    files, path = fsspec.core.url_to_fs(url, use_listings_cache=False, config_kwargs=once)
    files.retries = 1
    return files, path


def _version_if_listed(info: dict[str, Any] | None) -> FileVersion | None:
    return _version(info) if info and info.get("size") is not None else None


def _version(info: dict[str, Any]) -> FileVersion:
    if info.get("size") is None:
        do = "download it and give the local path"
        raise OSError(
            "its server does not say how large it is (no Content-Length), so what comes "
            f"cannot be checked; {do}"
        )

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
