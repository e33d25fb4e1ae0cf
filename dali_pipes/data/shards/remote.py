"""Object stores (s3://, gs://, any URL of fsspec): listing, and reading that is patient with what networks do.

A request that fails is sent again after a pause, which grows and is drawn at random, so that many ranks do not come back at once.
It has a deadline, since an answer of a byte a second never runs into the time-outs of the libraries below.
"""

import errno
import io
import logging
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from dali_pipes.data.range_file import RangeFile
from dali_pipes.data.shards import traffic
from dali_pipes.errors import ConfigError, ManifestError

T = TypeVar("T")
FileVersion = tuple[int, int]  # size in bytes; modification time in nanoseconds, or a number made of the ETag

CHANGED = "the shard has changed since it was scanned; scan again"
_CHUNK = 16 * 2**20  # bytes per request
_READ_AHEAD = 2**20  # bytes of an open object
_ATTEMPTS, _FIRST_PAUSE_S, _MAX_PAUSE_S = 10, 0.2, 10.0  # each pause is about twice as long as the one before; 42 s in all
_ATTEMPTS_WHILE_FAILING = 2  # of a request while none succeeds, so that a store that is away is named within minutes
_QUIET_ATTEMPTS = 3  # of a request, before a warning says what is being waited for
_DEADLINE_S, _SLOWEST = 30.0, 100_000  # of a request: seconds, and one more for so many bytes
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")  # the names that fsspec's file systems use
_ETAGS = ("ETag", "etag")
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "hf": "huggingface_hub"}

log = logging.getLogger(__name__)
_failing: set[str] = set()  # stores in which a request failed in all attempts, and none has succeeded since


def is_remote(source: str | os.PathLike[str]) -> bool:
    """Whether it is a URL."""
    return "://" in os.fspath(source)


def absolute(root: str | os.PathLike[str]) -> Path | str:
    """The path of a folder, or the URL."""
    return str(root) if is_remote(root) else Path(os.path.abspath(root))


def list_objects(url: str) -> dict[str, FileVersion]:
    """Size and version of each object directly under `url`, or of the one that it names; ManifestError if there is nothing."""
    infos = _listed(url, "ls")
    if infos is None:
        raise ManifestError(f"{url}: no such place in the object store")
    return {info["name"].rsplit("/", 1)[-1]: _version(info) for info in infos if info["type"] == "file"}


def is_there(url: str) -> bool:
    """Whether there is an object or a folder of this very name."""
    return _listed(url, "ls") is not None


def list_all(url: str) -> dict[str, FileVersion]:
    """Likewise each object below `url`, by the path from there."""
    base = url.split("://")[1].strip("/") + "/"
    return {name.lstrip("/").removeprefix(base): _version(info) for name, info in (_listed(url, "find") or {}).items()}


def _listed(url: str, method: str) -> Any:
    try:
        return _ask(url, method, detail=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManifestError(f"{url}: cannot be listed ({_short(error)})") from None


def version_of(file: str) -> FileVersion:
    """Of a file or an object; OSError if it cannot be reached."""
    if not is_remote(file):
        stat = os.stat(file)
        return stat.st_size, stat.st_mtime_ns
    return _version(_ask(file, "info"))


def read_object(url: str, start: int = 0, end: int | None = None) -> bytes:
    """An object, or bytes of it; OSError if it cannot be read, FileNotFoundError if it is not there."""
    return bytes(_ask(url, "cat_file", 0 if end is None else end - start, start=start, end=end))


def write_object(url: str, content: bytes) -> None:
    """Raises OSError if it cannot be written."""
    _ask(url, "pipe_file", len(content), content)


def open_object(url: str) -> BinaryIO:
    """An object as a file whose parts are fetched as they are read; OSError, of reading too, if it cannot be reached."""

    def read(view: memoryview, at: int) -> int:
        for start in range(0, len(view), _CHUNK):
            part = view[start : start + _CHUNK]
            part[:] = read_object(url, at + start, at + start + len(part))
        return len(view)

    return io.BufferedReader(RangeFile(read, version_of(url)[0]), _READ_AHEAD)


def download(url: str, version: FileVersion, write: Callable[[bytes], object]) -> None:
    """Raises OSError if it is of another version, which is asked once, at the end, when it covers all parts; or as reading does."""
    try:
        for start in range(0, version[0], _CHUNK):
            write(read_object(url, start, min(start + _CHUNK, version[0])))
        now = version_of(url)
    except OSError:
        now = version
        with suppress(Exception):  # a single request says whether it failed because the object was replaced
            now = _version(_send(url, "info", _DEADLINE_S, (), {}))
        if now == version:
            raise
    if now != version:
        raise OSError(CHANGED)


def _ask(url: str, method: str, size: int = 0, *given: Any, **options: Any) -> Any:
    """The answer of the object store, which is asked again if it fails; `size` bytes are asked for or sent, if it is known."""
    failed, store = 0, "/".join(url.split("/")[:3])
    while True:
        try:
            answer = _send(url, method, _DEADLINE_S + size / _SLOWEST, given, options)
            if size and method == "cat_file" and len(answer) != size:
                raise OSError(f"{len(answer):,} bytes came instead of {size:,}")
            _failing.discard(store)
            return answer
        except ConfigError:
            raise
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(errno.ENOENT, "no such object", url) from None
        except PermissionError as error:
            raise OSError(f"no permission ({_short(error)}); have the credentials expired?") from None
        except Exception as error:  # what a broken connection looks like depends on the store
            failed += 1
            hopeless = store in _failing or "Credentials" in type(error).__name__  # there are none, says botocore or google.auth
            attempts = min(_ATTEMPTS, _ATTEMPTS_WHILE_FAILING) if hopeless else _ATTEMPTS
            if failed >= attempts:
                _failing.add(store)
                raise OSError(f"cannot be fetched ({failed} times: {_short(error)})") from None
            log.log(
                logging.WARNING if failed >= _QUIET_ATTEMPTS else logging.INFO,
                "%s: attempt %d of %d failed (%s); trying again",
                url,
                failed,
                attempts,
                _short(error),
            )
            traffic.add(retries=1)
            time.sleep(min(_FIRST_PAUSE_S * 2 ** (failed - 1), _MAX_PAUSE_S) * random.uniform(0.5, 1.5))


def _send(url: str, method: str, deadline_s: float, given: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The answer; TimeoutError only of file systems that can be interrupted."""
    scheme = url.split("://")[0]
    try:
        import fsspec
        from fsspec.asyn import AsyncFileSystem, sync

        files, path = _file_system(fsspec, scheme, url)
    except ImportError as error:
        install = _PACKAGES.get(scheme, "'dali_pipes[s3]'" if scheme.startswith("s3") else "the package that it asks for")
        raise ConfigError(f"{url} needs fsspec with its package for {scheme}:// ({error}); pip install {install}") from None
    except ValueError as error:
        raise ConfigError(f"{url}: {_short(error)}") from None
    if not isinstance(files, AsyncFileSystem):
        return getattr(files, method)(path, *given, **options)
    try:
        return sync(files.loop, getattr(files, f"_{method}"), path, *given, timeout=deadline_s, **options)
    except fsspec.exceptions.FSTimeoutError:
        raise TimeoutError(f"no whole answer within {deadline_s:.0f} s") from None


def _file_system(fsspec: Any, scheme: str, url: str) -> tuple[Any, str]:
    """The one of this process, and the path in it. S3's sends a request once: the attempts are those that `_ask` counts."""
    if scheme not in ("s3", "s3a"):
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    given = fsspec.config.conf.get(scheme, {}).get("config_kwargs", {})
    once = {"retries": {"total_max_attempts": 1}} | given
    files, path = fsspec.core.url_to_fs(url, use_listings_cache=False, config_kwargs=once)
    files.retries = 1
    return files, path


def _version(info: dict[str, Any]) -> FileVersion:
    size = int(info["size"])
    if etag := next((info[name] for name in _ETAGS if info.get(name)), ""):
        return size, int.from_bytes(sha256(etag.strip('"').encode()).digest()[:7], "big")  # short enough to be a file's time too
    changed = next((info[name] for name in _TIMES if info.get(name) is not None), 0)
    if isinstance(changed, str):
        changed = datetime.fromisoformat(changed)
    if isinstance(changed, datetime):
        changed = (changed if changed.tzinfo else changed.replace(tzinfo=UTC)).timestamp()
    return size, round(changed * 1_000_000) * 1_000  # microseconds: the precision that a float and every store have


def _short(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
