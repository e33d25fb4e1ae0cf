"""Writes the files of runs so that each is whole, or what it was before."""

import contextlib
import datetime
import errno
import itertools
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yields a path beside `file` to write to, which replaces `file` when the block has ended: the
    file is whole, or what it was before.

    Its folder is made if it is missing.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # a name of its own for each writer, in the same folder: a rename between disks would copy
    aside = file.with_name(f".{file.name}.{uuid.uuid4().hex}")

    try:
        yield aside
        aside.replace(file)
    except OSError as error:
        if error.filename == str(aside):  # a name that tells the user nothing
            error.filename = str(file)
        raise
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()


@contextlib.contextmanager
def open_replacing(file: Path) -> Iterator[BinaryIO]:
    """Yields a binary file to write to, which replaces `file` as `replacing` does when the block
    has ended, and survives a power cut.
    """
    with replacing(file) as aside, aside.open("wb") as opened:
        yield opened
        opened.flush()
        os.fsync(opened.fileno())

    # the new name is in the folder, which is synced on its own
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def refuse_unwritable(file: Path) -> None:
    """Raises the OSError that `replacing` would raise, before there is anything to write.

    It writes nothing that stays, and makes no folder.
    """
    if file.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))

    folder = next(place for place in file.absolute().parents if place.exists())
    try:
        # what a user may do on a mounted disk is only known by doing it
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(file)) from None


def make_run_folder(out: Path) -> Path:
    """Makes a folder in `out` for a run that begins now, and returns it."""
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder = out.absolute() / stamp
    folder.parent.mkdir(parents=True, exist_ok=True)

    # Runs that begin in the same second get a number. Whether a name is free is only known once
    # the folder is made: another run may take it meanwhile.
    for number in itertools.count(2):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            break
        folder = folder.with_name(f"{stamp}_{number}")
    return folder


def to_yaml(config: Any) -> str:
    """The YAML of every option of a job, as in the composed configuration."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(config))


def read_yaml(file: Path) -> dict[str, Any]:
    """The options that `to_yaml` has written."""
    from omegaconf import OmegaConf

    found: dict[str, Any] = OmegaConf.to_container(OmegaConf.load(file))  # type: ignore[assignment]
    return found


def to_plain(config: Any) -> dict[str, Any]:
    """Every option of a job, as in its YAML, in dicts, lists, texts and numbers."""
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(OmegaConf.create(to_yaml(config)))
    return plain
