"""Shards, files that hold many images: finding them, and reading their manifest rows."""

import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from dali_pipes.data import decoders
from dali_pipes.data.headers import Header, ScanOptions, examine, os_problem
from dali_pipes.data.labels import MAX_CLASSES
from dali_pipes.data.reader import PartFile, ShardMember
from dali_pipes.data.shards import tar, tfrecord
from dali_pipes.data.shards.remote import FileVersion, check_room, is_remote, list_objects, open_copy, read_object
from dali_pipes.errors import ManifestError
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.progress import track
from dali_pipes.system.workers import in_order

CLASSES_FILE = "classes.json"
_TFRECORD = re.compile(r"\.tfrecords?$|-\d{5}-of-\d{5}$")  # the second is the naming of TensorFlow's scripts
_READ_AT_ONCE = 8192  # bytes; enough for most headers


Shard = tuple[bytes, FileVersion]  # path or URL


class ScannedMember(NamedTuple):
    """One image of a shard, or one problem.

    Attributes:
        header: the image's; its `mtime_ns` is the shard's.
        shard_bytes: size of the shard.
    """

    part: ShardMember
    header: Header
    shard_bytes: int


def is_shard(path: str | Path) -> bool:
    """Whether a file of this name holds many images."""
    return _format(Path(path).name) is not None


def list_shards(source: Path | str) -> tuple[Path | str, dict[bytes, FileVersion]]:
    """The folder and the shards of `source`, which is a shard, or a folder or URL of shards; in order, with stamps.

    A folder of another kind has none. A folder with subfolders is one of classes, whatever else is in it.

    Raises:
        ManifestError: a URL without a shard, or with more shards than fit into the local folder.
    """
    if isinstance(source, str):
        return _list_remote(source)
    if source.is_file():
        return source.parent, {os.fsencode(source.name): _stamp(os.fspath(source))} if is_shard(source) else {}
    entries = list(os.scandir(source)) if source.is_dir() else []
    if any(entry.is_dir() for entry in entries):
        return source, {}
    return source, {os.fsencode(name): _stamp(source / name) for name in sorted(entry.name for entry in entries) if is_shard(name)}


def read_shards(
    root: Path | str, shards: dict[bytes, FileVersion], check: ScanOptions, workers: int | None, progress: bool
) -> Iterator[list[ScannedMember]]:
    """The content of each of these shards, in order."""
    files = [(os.path.join(os.fsencode(root), name), stamp) for name, stamp in shards.items()]
    if check.verify == "full":
        decoders.load()
    read = in_order(partial(read_shard, check=check), files, min(workers or 2 * available_cpus(), len(files)))
    return track(read, "reading shards", len(files), progress)


def read_shard(shard: tuple[bytes, FileVersion], check: ScanOptions) -> list[ScannedMember]:
    """The images of one shard with their headers. Never raises because of the shard: what is wrong is in `problem`."""
    file = os.fsdecode(shard[0])
    try:
        number = open_copy(file, shard[1]) if is_remote(file) else os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return [ScannedMember(*_useless(ShardMember(b"", 0, 0, problem=os_problem(error)), 0), 0)]
    stat = os.fstat(number)
    parts = _format(file)
    try:
        if not stat.st_size or parts is None:
            return [ScannedMember(*_useless(ShardMember(b"", 0, 0, problem="empty file"), stat.st_mtime_ns), 0)]
        return [ScannedMember(*_look(number, part, stat.st_mtime_ns, check), stat.st_size) for part in parts(number, stat.st_size)]
    except OSError as error:
        return [ScannedMember(*_useless(ShardMember(b"", 0, 0, problem=os_problem(error)), stat.st_mtime_ns), stat.st_size)]
    finally:
        os.close(number)


def class_names(root: Path | str, labels: int) -> list[str]:
    """The names in `classes.json` beside the shards; if there is none, the numbers from 0 on, `labels` of them.

    Raises:
        ManifestError: the file is not a list of names.
    """
    file = os.path.join(root, CLASSES_FILE)
    try:
        names = json.loads(read_object(file) if is_remote(file) else Path(file).read_bytes())
    except FileNotFoundError:
        return [str(number) for number in range(labels)]
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(f"{file}: cannot be read ({error}); make it a list of class names, or remove it") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ManifestError(f"{file}: not a list of class names; fix it or remove it")
    return names


def _list_remote(url: str) -> tuple[str, dict[bytes, FileVersion]]:
    listed = {os.fsencode(name): stamp for name, stamp in sorted(list_objects(url).items()) if is_shard(name)}
    if not listed:
        raise ManifestError(f"{url}: no shard there (NAME.tar or NAME.tfrecord); single images are not read from object stores")
    check_room(url, listed)
    return url.rsplit("/", 1)[0] if is_shard(url) else url.rstrip("/"), listed


def _stamp(file: str | Path) -> FileVersion:
    try:
        stat = os.stat(file)
    except OSError:
        return 0, 0  # the error is reported when it is read
    return stat.st_size, stat.st_mtime_ns


def _look(number: int, part: ShardMember, mtime_ns: int, check: ScanOptions) -> tuple[ShardMember, Header]:
    if part.problem:
        return _useless(part, mtime_ns)
    if part.label >= MAX_CLASSES:
        return _useless(part._replace(problem=f"label {part.label}; number the classes from 0, without large gaps"), mtime_ns)
    with BufferedReader(PartFile(number, part.offset, part.length), _READ_AT_ONCE) as file:
        return part, examine(file, part.length, mtime_ns, check)


def _useless(part: ShardMember, mtime_ns: int) -> tuple[ShardMember, Header]:
    return part, Header(part.length, mtime_ns, 0, 0, 1, "", False, part.problem)


def _format(name: str) -> Callable[[int, int], Iterator[ShardMember]] | None:
    if name.endswith(".tar"):
        return tar.parts
    return tfrecord.parts if _TFRECORD.search(name) else None
