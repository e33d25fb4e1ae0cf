"""Keeps the result of a label pass in a file: `LabelFile`.

The file's name has a hash of the data set (data_state.py). What was seen is added while the pass
goes on, so that the next call goes on where this one was stopped. It is valid as long as all files
that the data set opened are what they were. A file that is damaged, or of which a part is missing,
is valid up to there.

Nothing in a file is executed: only values of a few types are written and read.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import io
import logging
import os
import pickle
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from dali_pipes.adapters.from_torch.structure import PictureSlot, slot
from dali_pipes.data.reader import Extent

log = logging.getLogger(__name__)

# the files of a sample, paths or parts of files, and its skeleton
Record = tuple[tuple[Any, ...], Any]

_HEAD = struct.Struct("<Q16s")  # the length of an entry, and its hash
# what pickles of NumPy's arrays and numbers, and ours of a slot and a tensor, are made of
_TYPES = {
    *(("numpy", name) for name in ("dtype", "ndarray")),
    *(
        (f"{package}.{module}", name)
        for package in ("numpy._core", "numpy.core")
        for module, name in (
            ("multiarray", "_reconstruct"),
            ("multiarray", "scalar"),
            ("numeric", "_frombuffer"),
        )
    ),
    (__name__, "_tensor"),
    (slot.__module__, "slot"),
    (Extent.__module__, "Extent"),
}


class LabelFile:
    """What a label pass has seen so far.

    Use it as a context manager: in the block no other process writes the file, and one that would
    like to waits. If it cannot be written, it is left out.

    Args:
        folder: where it is kept.
        key: a hash of the data set and of the indices of its samples.
        example: a skeleton of a sample, whose types a file may have.
    """

    def __init__(self, folder: str | Path, key: str, example: Any):
        self._path = Path(folder, f"from_torch-labels-{key}")
        self._types = _TYPES | {
            (kind.__module__, kind.__qualname__) for kind in _types_in(example) if _is_plain(kind)
        }
        self._stamps: dict[str, Any] = {}
        self._file: IO[bytes] | None = None

    def __enter__(self) -> "LabelFile":
        # such as a folder that cannot be written, or one of a file server without locks
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a+b")
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            self._give_up(error)
        return self

    def __exit__(self, *raised: object) -> None:
        self._close()

    def read(self, count: int) -> tuple[list[Record], int]:
        """What is known of the first samples, and how many were compared; nothing if a file that
        the data set opened is not what it was.

        Args:
            count: samples of the data set.
        """
        records: list[Record] = []
        compared, end = 0, 0
        if self._file is None:
            return records, compared

        # the rest of a file that was cut off is overwritten
        self._file.seek(0)
        for entry in self._entries(self._file):
            end = self._file.tell()
            records += entry.get("records", ())
            compared = entry.get("compared", compared)
            self._stamps |= entry.get("stamps", {})
        self._file.truncate(end)

        is_whole = len(records) <= count and compared <= (count if len(records) == count else 0)
        if is_whole and all(_stamp(path) == stamp for path, stamp in self._stamps.items()):
            return records, compared
        self.clear()
        return [], 0

    def clear(self) -> None:
        """Forgets everything."""
        self._stamps = {}
        if self._file:
            self._file.truncate(0)

    def add(self, records: list[Record], read: Iterable[str]) -> None:
        """Notes what the next samples have.

        Args:
            read: further files that were opened, and folders that were listed.
        """
        paths = set(map(os.path.abspath, read))
        paths.update(_path_of(file) for files, _ in records for file in files)
        stamps = {path: _stamp(path) for path in paths if path not in self._stamps}
        self._stamps |= stamps
        self._write({"records": records, "stamps": stamps})

    def note(self, compared: int) -> None:
        """Notes how many samples have been compared."""
        self._write({"compared": compared})

    def finish(self) -> None:
        """Makes sure that it survives a power cut."""
        if self._file:
            with contextlib.suppress(OSError):
                self._file.flush()
                os.fsync(self._file.fileno())

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            encoded = _Pickler.dumps(entry, self._types)
            head = _HEAD.pack(len(encoded), _hash(encoded))
            self._file.write(head + encoded)
            self._file.flush()
        # values of other types, or a disk that is full
        except (pickle.PicklingError, OSError) as error:
            self._give_up(error)

    def _entries(self, file: IO[bytes]) -> Iterator[dict[str, Any]]:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, known = _HEAD.unpack(head)
            # a length that is damaged may be any number
            encoded = file.read(min(length, os.fstat(file.fileno()).st_size))
            if len(encoded) != length or _hash(encoded) != known:
                return
            try:
                yield _Unpickler(io.BytesIO(encoded), self._types).load()
            except Exception:  # a pickle of something else may raise almost anything
                return

    def _give_up(self, error: Exception) -> None:
        log.info("%s: is not kept (%s)", self._path, error)
        if self._file:
            with contextlib.suppress(OSError):
                self._file.truncate(0)
        self._close()

    def _close(self) -> None:
        if self._file:
            # closing flushes, which may fail again
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


class _Pickler(pickle.Pickler):
    """Writes values of known types, and refuses others."""

    def __init__(self, file: IO[bytes], types: set[tuple[str, str]]):
        super().__init__(file, protocol=5)
        self._types = types

    @classmethod
    def dumps(cls, value: Any, types: set[tuple[str, str]]) -> bytes:
        with io.BytesIO() as file:
            cls(file, types).dump(value)
            return file.getvalue()

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, PictureSlot):
            return slot, (value.number,)
        # a tensor's own pickle is read by torch.load, which may execute what is in it
        if type(value) is torch.Tensor and value.dtype is not torch.bfloat16:
            return _tensor, (value.detach().numpy(),)
        # classes and functions by their names
        if isinstance(value, type) or callable(value):
            name = (value.__module__, getattr(value, "__qualname__", ""))
            if name not in self._types:
                raise pickle.PicklingError(f"a value of {'.'.join(name)} is not kept")
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Reads values of known types, and refuses others."""

    def __init__(self, file: IO[bytes], types: set[tuple[str, str]]):
        super().__init__(file)
        self._types = types

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._types:
            raise pickle.UnpicklingError(f"{module}.{name} is not read")
        return super().find_class(module, name)


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array)


def _types_in(value: Any) -> Iterator[type]:
    """Yields the classes of a skeleton's containers."""
    yield type(value)
    if isinstance(value, Mapping):
        inside = list(value.values())
    elif isinstance(value, (tuple, list)):
        inside = list(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside = [getattr(value, each.name) for each in dataclasses.fields(value)]
    else:
        return
    for each in inside:
        yield from _types_in(each)


def _is_plain(kind: type) -> bool:
    """Whether making a value of a class executes no code of its own."""
    return kind.__module__ != "builtins" and (
        issubclass(kind, tuple) or "__dataclass_fields__" in vars(kind)
    )


def _path_of(file: str | Extent) -> str:
    return file.file if isinstance(file, Extent) else file


def _stamp(path: str) -> tuple[int, int] | None:
    """Size and modification time of a file or folder; None: there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _hash(encoded: bytes) -> bytes:
    return hashlib.blake2b(encoded, digest_size=16).digest()
