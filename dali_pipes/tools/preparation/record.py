"""prepared.json: the source and options of a prepared folder; and the lock that a run holds on the folder while it writes."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dali_pipes.errors import PreparationError
from dali_pipes.tools.preparation.config import Part

SCHEMA = 1
NAME = "prepared.json"
_NAMES = "prepared*.json"  # with those of parts
_SCRATCH = ".unfinished"


class Record:
    """prepared.json of one folder, or of a part of the work prepared-2-of-8.json.

    Attributes:
        out: the folder.
    """

    def __init__(self, out: Path, options: dict[str, Any], part: str):
        self.out = out
        self._file, self._scratch = out / NAME.replace(".", f"{part}."), out / f"{_SCRATCH}{part}"
        self._content: dict[str, Any] = {"schema": SCHEMA, "options": options, "splits": {}}
        earlier = sorted(out.glob(_NAMES))
        for file in earlier:
            self._go_on(file)
        if not earlier and any(not name.startswith(_SCRATCH) for name in os.listdir(out)):
            raise PreparationError(f"{out} is not empty and was not made by prepare.py; choose another folder, nothing was changed")
        self._scratch.mkdir(exist_ok=True)
        self._claimed = _claim(self._scratch, fcntl.LOCK_EX)
        for left in self._scratch.iterdir():
            left.unlink()

    def begin(self, split: str, source: dict[str, Any]) -> None:
        """Records the source of a split before anything of it is written.

        Raises:
            PreparationError: an earlier run began it from another source.
        """
        known = self._content["splits"].get(split)
        if known is None:
            self._content["splits"][split] = {"source": source, "result": None}
        else:
            self._must_match(known["source"], source, f"{split} of ")
        self._save()

    def finish(self, split: str, result: dict[str, Any]) -> None:
        self._content["splits"][split]["result"] = result
        self._save()

    def write(self, file: Path, content: bytes) -> None:
        """Writes a file in the folder, whole or not at all."""
        aside = self.aside(str(os.getpid()))
        try:
            aside.write_bytes(content)
            aside.replace(file)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(file)) from None

    def aside(self, name: str) -> Path:
        """A temporary path for a file that is renamed when it is complete; a killed run leaves nothing else."""
        return self._scratch / name

    def _go_on(self, file: Path) -> None:
        try:
            found = json.loads(file.read_text())
            schema, options, splits = found["schema"], dict(found["options"]), dict(found["splits"])
            splits = {name: {"source": dict(split["source"]), "result": split["result"]} for name, split in splits.items()}
        except (ValueError, KeyError, TypeError) as error:
            raise PreparationError(f"{file} cannot be read ({error}); choose another folder, nothing was changed") from None
        if schema != SCHEMA:
            raise PreparationError(f"{file}: schema {schema}, and this version writes {SCHEMA}; choose another folder")
        self._must_match(options, self._content["options"], "")
        self._content["splits"] |= {
            name: split if file == self._file else split | {"result": None} for name, split in splits.items()
        }

    def _must_match(self, then: dict[str, Any], now: dict[str, Any], what: str) -> None:
        differ = [f"{name} was {then.get(name)}, and now is {now.get(name)}" for name in now if then.get(name) != now.get(name)]
        if differ:
            raise PreparationError(f"{what}{self.out} was begun differently: {'; '.join(differ)}; choose another folder for out=")

    def _save(self) -> None:
        self.write(self._file, json.dumps(self._content, indent=1).encode() + b"\n")

    def _close(self) -> None:
        os.close(self._claimed)
        shutil.rmtree(self._scratch, ignore_errors=True)


@contextmanager
def recorded(out: Path, options: dict[str, Any], part: Part | None = None) -> Iterator[Record]:
    """The folder, made if necessary and locked for this run; parts may run at the same time.

    Raises:
        PreparationError: another run writes there, it was begun with other options, or it holds something else.
    """
    out.mkdir(parents=True, exist_ok=True)
    name = part.name if part else ""
    folder = _claim(out, fcntl.LOCK_SH if name else fcntl.LOCK_EX)
    try:
        record = Record(out, options, name)
        try:
            yield record
        finally:
            record._close()
    finally:
        os.close(folder)


def _claim(folder: Path, how: int) -> int:
    """Locks a folder until what is returned is closed."""
    number = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(number, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        raise PreparationError(f"{folder}: another run is writing there; wait for its end, or choose another folder") from None
    except OSError:
        pass  # a file system without locks
    return number
