"""Shards in an object store (s3://, gs://, any URL of fsspec), copied whole into a local cache folder of bounded size.

Reading an image waits until its shard is in the cache, then reads that file like any other. So it is with row groups of Parquet
files, remote or not, whose images are unpacked there. All processes of a machine share the
folder: one process downloads a shard and the others wait for it. The least recently used shards are removed to make room.
"""

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from dali_pipes.data.shards.parquet import copy_group, group_of, is_group
from dali_pipes.errors import ConfigError, ManifestError

T = TypeVar("T")
FileVersion = tuple[int, int]  # size in bytes, and modification time in nanoseconds

CHANGED = "the shard has changed since it was scanned; scan again"
FOLDER, LIMIT = "DALI_PIPES_CACHE", "DALI_PIPES_CACHE_GB"  # environment variables, which child processes inherit
_DEFAULT_FOLDER, _DEFAULT_GB = "~/.cache/dali_pipes", "200"
_CHUNK = 16 * 2**20  # bytes per request
_ATTEMPTS, _FIRST_PAUSE_S = 6, 0.2  # without a byte of progress; each pause is twice as long as the one before
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")  # the names that fsspec's file systems use

log = logging.getLogger(__name__)


def is_remote(source: str | os.PathLike[str]) -> bool:
    """Whether it is a URL."""
    return "://" in os.fspath(source)


def is_copied(file: str) -> bool:
    """Whether it is read from a copy in the local folder."""
    return is_remote(file) or is_group(file)


def list_objects(url: str) -> dict[str, FileVersion]:
    """Size and time of each object directly under `url`, or of the one that it names.

    Raises:
        ManifestError: there is nothing, or it cannot be reached.
    """
    try:
        files, path = _file_system(url)
        infos = files.ls(path, detail=True)
    except ConfigError:
        raise
    except FileNotFoundError:
        raise ManifestError(f"{url}: no such place in the object store") from None
    except Exception as error:  # every store raises its own
        raise ManifestError(f"{url}: cannot be listed ({_short(error)})") from None
    return {info["name"].rsplit("/", 1)[-1]: _stamp(info) for info in infos if info["type"] == "file"}


def read_object(url: str) -> bytes:
    """All of a small object.

    Raises:
        OSError: it cannot be read; FileNotFoundError if it is not there.
    """
    files, path = _file_system(url)
    try:
        return bytes(files.cat_file(path))
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"cannot be fetched ({_short(error)})") from None


def read_file(file: str, read: Callable[[Any], T]) -> T:
    """What `read` makes of a path, or of an open object, parts of which are fetched as it reads them.

    Raises:
        OSError: it cannot be read.
    """
    if not is_remote(file):
        return read(file)
    files, path = _file_system(file)

    def ask() -> T:
        with files.open(path, "rb") as opened:
            return read(opened)

    return _patiently(file, ask)


def time_of(file: str) -> int:
    """The modification time of a file or an object, in nanoseconds."""
    if not is_remote(file):
        return os.stat(file).st_mtime_ns
    files, path = _file_system(file)
    return _patiently(file, lambda: _stamp(files.info(path))[1])


def check_room(url: str, stamps: dict[bytes, FileVersion]) -> None:
    """Checks that all shards fit into the local folder: an epoch in random order needs all of them all the time.

    Raises:
        ManifestError: they do not fit.
    """
    total = sum(size for size, _ in stamps.values())
    if total > _limit():
        raise ManifestError(
            f"{url}: its shards have {total / 1e9:,.1f} GB, and {_folder()} may hold {_limit() / 1e9:,.1f}, so "
            f"that nearly each image would have its shard fetched; raise {LIMIT}, or name a larger disk with {FOLDER}"
        )


def open_copy(url: str, stamp: FileVersion) -> int:
    """A file descriptor of a local copy of the object with this size and time, which is downloaded if it is missing.

    Raises:
        OSError: it cannot be downloaded, or the object has been replaced.
    """
    copy = copy_of(url, stamp)
    while True:
        with suppress(FileNotFoundError):
            number = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
            os.utime(copy, ns=(time.time_ns(), stamp[1]))  # the access time is the time of last use
            return number
        copy.parent.mkdir(parents=True, exist_ok=True)
        with _locked(copy.with_suffix(".lock")):
            if not copy.exists():
                _fetch(url, stamp, copy)


def copy_of(url: str, stamp: FileVersion) -> Path:
    """The path of the copy, if there is one."""
    return _folder() / hashlib.sha256(f"{url} {stamp}".encode()).hexdigest()[:32]


def _fetch(url: str, stamp: FileVersion, copy: Path) -> None:
    """Downloads under a temporary name until the file is complete; its full size counts from the start."""
    partial = copy.with_suffix(".part")
    with _locked(copy.parent / "folder.lock"):
        _make_room(copy.parent, stamp[0])
        with open(partial, "wb") as file:
            os.truncate(file.fileno(), stamp[0])
    try:
        with open(partial, "r+b") as file:
            (_unpack if is_group(url) else _download)(url, stamp, file)
        os.utime(partial, ns=(time.time_ns(), stamp[1]))
        partial.replace(copy)
    finally:
        partial.unlink(missing_ok=True)


def _unpack(name: str, stamp: FileVersion, file: BinaryIO) -> None:
    """The images of a row group; the size is theirs, the time the Parquet file's."""
    url, number = group_of(name)

    def unpack(opened: Any) -> int:
        file.seek(0)
        return copy_group(opened, number, file)

    if (read_file(url, unpack), time_of(url)) != stamp:
        raise OSError(CHANGED)


def _download(url: str, stamp: FileVersion, file: BinaryIO) -> None:
    files, path = _file_system(url)

    def part(start: int, end: int) -> bytes:
        found = files.cat_file(path, start=start, end=end)
        if len(found) != end - start:
            raise OSError(f"{len(found):,} bytes came instead of {end - start:,}")
        return bytes(found)

    _same(files, path, stamp)
    for start in range(0, stamp[0], _CHUNK):
        file.write(_patiently(path, part, start, min(start + _CHUNK, stamp[0])))
    _same(files, path, stamp)  # not replaced meanwhile


def _same(files: Any, path: str, stamp: FileVersion) -> None:
    if _patiently(path, lambda: _stamp(files.info(path))) != stamp:
        raise OSError(CHANGED)


def _patiently(path: str, ask: Callable[..., T], *given: Any) -> T:
    """The answer of the object store, which is asked again if it fails."""
    failed = 0
    while True:
        try:
            return ask(*given)
        except FileNotFoundError:
            raise
        except Exception as error:  # what a broken connection looks like depends on the store
            failed += 1
            if failed >= _ATTEMPTS:
                raise OSError(f"cannot be fetched ({failed} times: {_short(error)})") from None
            log.info("%s: %s; trying again", path, _short(error))
            time.sleep(_FIRST_PAUSE_S * 2 ** (failed - 1))


def _make_room(folder: Path, size: int) -> None:
    """Removes the least recently used copies, and incomplete ones that a killed process left."""
    kept: list[tuple[int, int, Path]] = []
    for entry in os.scandir(folder):
        path = Path(entry.path)
        if path.suffix == ".lock" or (path.suffix == ".part" and _abandoned(path)):
            continue
        with suppress(FileNotFoundError):
            stat = entry.stat()
            kept.append((stat.st_atime_ns, stat.st_size, path))
    used = sum(size for _, size, _ in kept)
    for _, freed, path in sorted(kept):
        if used + size <= _limit():
            return
        if path.suffix != ".part":
            path.unlink(missing_ok=True)
            used -= freed


def _abandoned(partial: Path) -> bool:
    """Removes it unless a process is downloading it."""
    try:
        with _locked(partial.with_suffix(".lock"), wait=False):
            partial.unlink(missing_ok=True)
            return True
    except BlockingIOError:
        return False


@contextmanager
def _locked(file: Path, wait: bool = True) -> Iterator[None]:
    number = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        fcntl.flock(number, fcntl.LOCK_UN)  # closing is not enough: a process forked meanwhile has the descriptor too
        os.close(number)


def _file_system(url: str) -> tuple[Any, str]:
    """A new file system for each call: fsspec's must not be shared with forked processes, and cache what they listed."""
    scheme = url.split("://")[0]
    try:
        import fsspec

        files, path = fsspec.core.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False)
    except ImportError as error:
        raise ConfigError(f"{url} needs fsspec with its package for {scheme}:// ({error}); pip install 'dali_pipes[s3]'") from None
    except ValueError as error:
        raise ConfigError(f"{url}: {_short(error)}") from None
    return files, path


def _stamp(info: dict[str, Any]) -> FileVersion:
    changed = next((info[name] for name in _TIMES if info.get(name) is not None), 0)
    if isinstance(changed, str):
        changed = datetime.fromisoformat(changed)
    if isinstance(changed, datetime):
        changed = (changed if changed.tzinfo else changed.replace(tzinfo=UTC)).timestamp()
    return int(info["size"]), round(changed * 1_000_000) * 1_000  # microseconds: the precision that a float and every store have


def _folder() -> Path:
    return Path(os.environ.get(FOLDER, _DEFAULT_FOLDER)).expanduser()


def _limit() -> int:
    text = os.environ.get(LIMIT, _DEFAULT_GB)
    try:
        return int(float(text) * 1e9)
    except ValueError:
        raise ConfigError(f"{LIMIT}={text} is not a number; it takes gigabytes") from None


def _short(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
