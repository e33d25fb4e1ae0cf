"""A local folder of bounded size with copies: of shards in an object store, and of unpacked row
groups of Parquet files.

`open_copy` opens a copy and makes it if it is missing; `hold_copy` also keeps it from being removed
until `release`.

All processes of a machine share the folder. One process makes a copy under a temporary name, and
the others wait for it. To make room, copies that no process holds are removed, the least recently
used first. A removed copy is also emptied, since a process that has it open would keep it on the
disk; a reader that finds it empty opens it anew. Locks are flock's, which end with their process.

A copy has the size and the modification time of its version. One with others was cut off or
overwritten by something else (a power cut, a full disk, a clean-up script), and is fetched again.
"""

import errno
import fcntl
import hashlib
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dali_pipes.data.shards import traffic
from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.data.shards.listing import CHANGED, FileVersion, version_of
from dali_pipes.data.shards.parquet import copy_group, group_of, is_group
from dali_pipes.data.shards.remote import download, open_object
from dali_pipes.errors import ConfigError, Spelling

# environment variables, which child processes inherit
FOLDER, LIMIT = "DALI_PIPES_CACHE", "DALI_PIPES_CACHE_GB"
_DEFAULT_FOLDER, _DEFAULT_GB = "~/.cache/dali_pipes", "200"
_COPY_NAME = re.compile(r"copy-[0-9a-f]{32}(\.part)?")  # other files in the folder are the user's
_PATIENCE_S, _PAUSE_S = 1.0, 0.02  # of a reader, for copies that other processes hold
_TOO_MANY, _held_removed = 20, 0  # copies that this process removed though another one held them
_COARSE_NS = 2 * 10**9  # some file systems keep no finer times
# by copy: when this process last failed to make it, and why
_failures: dict[Path, tuple[float, OSError]] = {}


log = logging.getLogger(__name__)


class NoRoomError(Exception):
    """Everything in the folder is in use."""


def is_copied(file: str) -> bool:
    """Whether a file is read from a copy in the local folder."""
    return is_remote(file) or is_group(file)


def copy_of(url: str, version: FileVersion) -> Path:
    """The path that the copy has, or would have."""
    return cache_folder() / f"copy-{hashlib.sha256(f'{url} {version}'.encode()).hexdigest()[:32]}"


def open_copy(url: str, version: FileVersion) -> int:
    """Opens the copy, which is made if it is missing; returns a file descriptor.

    The copy may be removed and emptied later: see `is_gone`.

    Raises:
        OSError: it cannot be made.
    """
    start = time.monotonic()
    try:
        return _wait_for_room(_open, url, version)
    finally:
        traffic.add(waited_s=time.monotonic() - start)


def hold_copy(url: str, version: FileVersion, take_held: bool = False) -> int:
    """Opens the copy as `open_copy` does, and keeps it until `release`.

    It is still removed if a reader in another process has waited for room for a second.

    Args:
        take_held: whether held copies are removed if there is no room otherwise.

    Raises:
        NoRoomError: there is no room, and `take_held` is False.
    """
    while True:
        descriptor = _open(url, version, take_held)
        # shared, since several processes may hold a copy; `_remove` asks for an exclusive lock
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        # it may have been removed between its opening and the lock
        if not is_gone(descriptor):
            return descriptor
        release(descriptor)


@contextmanager
def holding_copy(url: str, version: FileVersion) -> Iterator[int]:
    """Holds the copy inside a `with` block, as soon as there is room.

    Room that others hold is waited for no longer than by a reader.
    """
    descriptor = _wait_for_room(hold_copy, url, version)
    try:
        yield descriptor
    finally:
        release(descriptor)


def release(descriptor: int) -> None:
    """Closes a copy that was held."""
    # closing alone would not unlock it: a process forked meanwhile has the descriptor too
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_gone(descriptor: int) -> bool:
    """Whether an open copy has been removed."""
    return os.fstat(descriptor).st_nlink == 0


def cache_folder() -> Path:
    return Path(os.environ.get(FOLDER, _DEFAULT_FOLDER)).expanduser()


def cache_bytes() -> int:
    """The number of bytes that the folder may hold.

    Raises:
        ConfigError: the environment variable is not a number above 0.
    """
    text = os.environ.get(LIMIT, _DEFAULT_GB)
    try:
        room = round(float(text) * 1e9)
    except (ValueError, OverflowError):
        room = 0
    if room <= 0:
        raise ConfigError(f"{LIMIT}={text} is not a number above 0; it takes gigabytes")
    return room


def check_folder() -> None:
    """Raises ConfigError if nothing can be written into the folder."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "folder.lock"), suppress(NoRoomError):
            _make_room(folder, 0, False)  # the limit may be lower than it was
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{FOLDER}={folder}: {why}; name a folder of yours on a local disk"
        ) from None


def _wait_for_room(
    get: Callable[[str, FileVersion, bool], int], url: str, version: FileVersion
) -> int:
    """Calls `get` until there is room; after a second, copies that are held are removed too."""
    start = time.monotonic()
    while True:
        with suppress(NoRoomError):
            return get(url, version, time.monotonic() - start > _PATIENCE_S)
        time.sleep(_PAUSE_S)


def _open(url: str, version: FileVersion, take_held: bool) -> int:
    copy, made, start = copy_of(url, version), False, time.monotonic()
    while True:
        try:
            descriptor = os.open(copy, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            failed, error = _failures.get(copy, (-math.inf, OSError()))
            if failed >= start:  # the attempt of another thread, for which this one has waited
                raise OSError(*error.args) from None
            made = _make(url, version, copy, take_held) or made
            continue

        if is_gone(descriptor):
            os.close(descriptor)
        elif not is_whole(descriptor, version):
            os.close(descriptor)
            _discard_damaged(copy, version)
        else:
            # the access time says when it was last used, by which `_make_room` chooses
            os.utime(descriptor, ns=(time.time_ns(), version[1]))
            traffic.add(hits=not made)
            return descriptor


def is_whole(descriptor: int, version: FileVersion) -> bool:
    """Whether an open copy has the size and the time that its maker gave it."""
    stat = os.fstat(descriptor)
    return stat.st_size == version[0] and abs(stat.st_mtime_ns - version[1]) < _COARSE_NS


def _discard_damaged(copy: Path, version: FileVersion) -> None:
    """Removes and empties a damaged copy, even if it is held, so that its readers open it anew."""
    with _locked(copy.parent / "folder.lock"), suppress(FileNotFoundError):
        descriptor = os.open(copy, os.O_RDWR | os.O_CLOEXEC)
        try:
            if not is_whole(descriptor, version):  # another process may have replaced it meanwhile
                log.warning(
                    "%s: the copy of a shard in the cache was damaged, and is fetched again", copy
                )
                copy.unlink()
                os.truncate(descriptor, 0)
        finally:
            os.close(descriptor)


def _make(url: str, version: FileVersion, copy: Path, take_held: bool) -> bool:
    """Makes the copy; returns False if another process makes it, or has just done so.

    Its full size counts against the limit from the start.
    """
    partial = copy.with_suffix(".part")
    copy.parent.mkdir(parents=True, exist_ok=True)
    with _locked(partial, fcntl.LOCK_NB) as descriptor:
        if descriptor is None:
            time.sleep(_PAUSE_S)
            return False

        # the other process finished, and removed its temporary file, before this one had the lock
        if is_gone(descriptor) or not partial.exists():
            return False

        try:
            # another process finished it after this one had looked for it
            if copy.exists():
                return False
            with _locked(copy.parent / "folder.lock"):
                _make_room(copy.parent, version[0], take_held)
                os.truncate(descriptor, version[0])

            with open(partial, "r+b") as file:
                (_unpack if is_group(url) else download)(url, version, file)
                file.flush()
                # otherwise, after a power cut, the name may be there and some of the bytes zero
                os.fsync(file.fileno())
            # `is_whole` knows it by this modification time; the access time says when it was last
            # used
            os.utime(partial, ns=(time.time_ns(), version[1]))
            with _locked(copy.parent / "folder.lock"):  # so that who makes room counts it once
                partial.replace(copy)

            traffic.add(fetched=1, fetched_bytes=version[0])
            _failures.pop(copy, None)
            return True
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                what = f"the cache {copy.parent}: {(error.strerror or '').lower()}"
                error = OSError(f"{what}; lower {LIMIT}, or name another folder with {FOLDER}")
            _failures[copy] = time.monotonic(), error
            raise error from None
        finally:
            partial.unlink(missing_ok=True)


def _unpack(name: str, version: FileVersion, file: BinaryIO) -> None:
    """Writes the images of a row group.

    The size in `version` is that of the images, and the rest is that of the Parquet file.

    Raises:
        OSError: the file has changed, or cannot be read.
    """
    url, number = group_of(name)
    size = copy_group(open_object(url) if is_remote(url) else url, number, file)
    if (size, version_of(url)[1]) != version:
        raise OSError(CHANGED)


def _make_room(folder: Path, size: int, take_held: bool) -> None:
    limit = cache_bytes()
    if size > limit:
        raise OSError(f"it has {size / 1e9:,.3g} GB, more than {LIMIT}={limit / 1e9:g} allows")

    # list the copies, and remove what killed processes left
    copies: list[tuple[int, int, Path]] = []
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):
            # the process that makes a copy locks its .part, so one that is not locked was left by a
            # process that was killed
            if _COPY_NAME.fullmatch(entry.name) and not (
                entry.name.endswith(".part") and _remove(Path(entry.path), False)
            ):
                copies.append((entry.stat().st_atime_ns, entry.stat().st_size, Path(entry.path)))

    # remove the least recently used ones
    used = sum(size for _, size, _ in copies)
    for _, freed, path in sorted(copies):
        if used + size <= limit:
            return
        # a .part is being made now, and its room is in use
        if path.suffix != ".part" and _remove(path, take_held):
            used -= freed
    if used + size > limit:
        raise NoRoomError


def _remove(path: Path, take_held: bool) -> bool:
    """Removes and empties a copy, or what a killed process left of one.

    Returns False if a process holds it and `take_held` is False.
    """
    descriptor, is_held = os.open(path, os.O_RDWR | os.O_CLOEXEC), True
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = False

        if is_held and take_held:
            _count_taken(path.parent)
        if take_held := take_held or not is_held:
            path.unlink(missing_ok=True)
            # who has it open would keep its bytes on the disk
            os.truncate(descriptor, 0)

        return take_held
    finally:
        release(descriptor)


def _count_taken(folder: Path) -> None:
    """Warns once if loaders that share the folder fetch the same shards again and again."""
    global _held_removed
    _held_removed += 1
    if _held_removed == _TOO_MANY and _held_removed > traffic.current().fetched / 2:
        log.warning(
            "the cache %s has too little room for all that load from it: %d shards that "
            "another loader reads were removed, and are "
            "fetched again; set %s to the sum of what they need, give each run a %s of its "
            "own, or lower %s",
            *(folder, _held_removed, LIMIT, FOLDER),
            Spelling("Windows.window_gb", "sampling.window_gb"),
        )


@contextmanager
def _locked(file: Path, wait: int = 0) -> Iterator[int | None]:
    """Locks a file and yields its descriptor; with LOCK_NB None if another process has it."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | wait)
            wait = 0
        yield None if wait else descriptor
    finally:
        release(descriptor)
