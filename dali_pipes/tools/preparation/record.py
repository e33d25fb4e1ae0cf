"""Records the source, the options and the outcome of a prepared folder, and locks the folder.

`recorded` locks the folder while a run writes, and yields its `Record`, prepared.json. A run
that was killed continues if its options and its source are the recorded ones.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dali_pipes.errors import PreparationError
from dali_pipes.system.locks import locked

SCHEMA = 1
NAME = "prepared.json"
_NAMES = "prepared*.json"  # also those of parts
_SCRATCH = ".unfinished"  # what the names of all temporary files and folders begin with


@dataclass(slots=True)
class Outcome:
    """Counts and bytes of the written files of one split, including those of an earlier run.

    Attributes:
        images: number of written images.
        same_pixels: how many of them this run copied without encoding them.
        kept: how many of them an earlier run wrote.
        bytes_before, bytes_after: the sizes of the written images, in the source and in the folder
            (as files or shards).
        left_out: path and reason of every file that could not be used.
        difference: how far the pixels before and after differ (measure.py), if they were compared.
    """

    images: int = 0
    same_pixels: int = 0
    kept: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    left_out: list[tuple[str, str]] = field(default_factory=list)
    difference: dict[str, Any] | None = None


class Record:
    """The file prepared.json of a folder; for a part of the work, prepared-2-of-8.json.

    It takes over what earlier runs have recorded. The temporary folder must be locked already.

    Args:
        options: the options that all runs into this folder must share.
        part: the name of the part; empty for all of the work.

    Attributes:
        out: the folder.
        scratch: the temporary folder inside it.

    Raises:
        PreparationError: the folder was made with other options, or holds something else.
    """

    def __init__(self, out: Path, options: dict[str, Any], part: str):
        self.out, self.scratch = out, out / f"{_SCRATCH}{part}"
        self._file = out / NAME.replace(".", f"{part}.")
        self._content: dict[str, Any] = {"schema": SCHEMA, "options": options, "splits": {}}

        earlier = sorted(out.glob(_NAMES))
        for file in earlier:
            self._resume(file)

        # the temporary folders of a killed run and of other parts do not count
        if not earlier and any(not name.startswith(_SCRATCH) for name in os.listdir(out)):
            raise PreparationError(
                f"{out} is not empty and was not made by dali-pipes prepare; choose another "
                "folder, nothing was changed"
            )

    def begin(self, split: str, source: dict[str, Any]) -> None:
        """Records the source of a split, before anything is written.

        Raises:
            PreparationError: the split was started from another source.
        """
        known = self._content["splits"].setdefault(split, {"source": source, "result": None})
        self._must_match(known["source"], source, f"{split} of ")
        self._save()

    def finish(self, split: str, result: dict[str, Any]) -> None:
        self._content["splits"][split]["result"] = result
        self._save()

    def write(self, file: Path, content: bytes) -> None:
        """Writes a file in the folder, whole or not at all.

        A killed run leaves incomplete files in its temporary folder only.
        """
        # a process writes one file at a time, so its number is a name of its own
        aside = self.scratch / str(os.getpid())

        try:
            aside.write_bytes(content)
            aside.replace(file)
        except OSError as error:
            # with the name of the file, since the temporary one tells the user nothing
            raise OSError(error.errno, error.strerror, str(file)) from None

    def _resume(self, file: Path) -> None:
        try:
            # a file of another form raises an error here, before anything is written
            content = json.loads(file.read_text())
            schema, options, splits = (
                content["schema"],
                dict(content["options"]),
                dict(content["splits"]),
            )
            splits = {
                name: {"source": dict(split["source"]), "result": split["result"]}
                for name, split in splits.items()
            }
        except (ValueError, KeyError, TypeError) as error:
            raise PreparationError(
                f"{file} cannot be read ({error}); choose another folder, nothing was changed"
            ) from None

        if schema != SCHEMA:
            raise PreparationError(
                f"{file}: schema {schema}, and this version writes {SCHEMA}; choose another folder"
            )

        self._must_match(options, self._content["options"], "")
        # results of parts are not this file's: merging makes them anew
        other = {} if file == self._file else {"result": None}
        self._content["splits"] |= {name: split | other for name, split in splits.items()}

    def _must_match(self, then: dict[str, Any], now: dict[str, Any], what: str) -> None:
        differ = [
            f"{name} was {then.get(name)}, and now is {now.get(name)}"
            for name in now
            if then.get(name) != now.get(name)
        ]

        if differ:
            raise PreparationError(
                f"{what}{self.out} was started with other options: {'; '.join(differ)}; choose "
                "another folder for out="
            )

    def _save(self) -> None:
        self.write(self._file, json.dumps(self._content, indent=1).encode() + b"\n")


@contextmanager
def recorded(out: Path, options: dict[str, Any], part: str = "") -> Iterator[Record]:
    """Creates a folder if necessary, and locks it for one run; parts may run at the same time.

    Raises:
        PreparationError: another run writes there, it was started with other options, or it holds
            something else.
    """
    out.mkdir(parents=True, exist_ok=True)

    # parts share the folder; a run of all the work needs it alone
    with _lock(out, f"{_SCRATCH}_lock", shared=bool(part)):
        record = Record(out, options, part)
        # two processes must not do the same part at once
        with _lock(out, f"{record.scratch.name}.lock"):
            record.scratch.mkdir(exist_ok=True)
            try:
                # of a run that was killed
                for left in record.scratch.iterdir():
                    left.unlink()
                yield record
            finally:
                shutil.rmtree(record.scratch, ignore_errors=True)


@contextmanager
def _lock(folder: Path, name: str, shared: bool = False) -> Iterator[None]:
    """Locks a folder, or a part of its work, inside the `with` block.

    Raises:
        PreparationError: another process has locked it.
    """
    with ExitStack() as lock:
        try:
            lock.enter_context(locked(folder / name, shared, wait_s=0))
        except BlockingIOError:
            raise PreparationError(
                f"{folder}: another run is writing there; wait for its end, or choose another "
                "folder"
            ) from None
        yield
