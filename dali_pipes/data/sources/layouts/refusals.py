"""Recognizes data sets of other programs, and says what each is and what to do with it.

A folder of YOLO looks like one with the classes images and labels, and the bytes of an archive look
like a broken table. So known layouts are named before anything is read. No layout is guessed by the
name of one folder: it is recognized by what its own program needs.

    refuse_other_layouts ─┬─ an address: addresses.py
                          ├─ a file, by its name, then by its first bytes: files.py
                          └─ a folder, with a function for each layout: folders.py

`refuse_other_objects` looks at the list of objects in a store as at a folder.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from dali_pipes.data.shards.addresses import is_remote
from dali_pipes.data.sources.layouts.addresses import refuse_address
from dali_pipes.data.sources.layouts.advice import describe_missing
from dali_pipes.data.sources.layouts.files import refuse_file
from dali_pipes.data.sources.layouts.folders import refuse_folder
from dali_pipes.data.sources.layouts.tree import Tree
from dali_pipes.data.sources.names.patterns import is_pattern
from dali_pipes.data.sources.shards import is_shard
from dali_pipes.data.table import saved
from dali_pipes.errors import ManifestError


def refuse_other_layouts(
    source: str | os.PathLike[str],
    with_labels: bool = True,
    entries: Iterable[tuple[str, bool]] | None = None,
) -> None:
    """Raises ManifestError if a source belongs to another program or does not exist, with what it
    is and what to do.

    Args:
        with_labels: whether images need a label; if not, a folder is refused only if its images are
            not files of their own.
        entries: entries of the folder, as `list_entries` returns them; None: it is listed here.
    """
    text = os.fspath(source)
    refuse_address(text)

    path = Path(text)
    if is_remote(text) or is_pattern(source):
        return

    if path.is_dir():
        refuse_folder(Tree(path, entries=entries), with_labels)
    elif path.is_file():
        refuse_file(path)
    elif not path.exists() and path.suffix not in (".csv", ".parquet", ".json", saved.MAPPED):
        # for those formats the reader says what it needs
        raise ManifestError(describe_missing(path))


def refuse_other_objects(url: str, names: Iterable[str]) -> None:
    """Raises ManifestError if the objects below a URL belong to another program."""
    refuse_folder(Tree(url, names))


def local_path(source: str | Path) -> str | Path:
    """Returns the source with ~ replaced by the home folder, and the URL of a local file as a path.

    file:// is a store like others for what stores have: it stays a URL for shards, Parquet files
    and images in class folders.
    """
    text = os.fspath(source)
    # no shell replaces ~ in a program or in a YAML file; a file may have that name
    if text.startswith("~") and not os.path.lexists(text):
        return Path(text).expanduser() if isinstance(source, Path) else os.path.expanduser(text)  # noqa: PTH111

    if text.startswith("file:/"):
        path = Path(
            "/" + unquote(text.removeprefix("file:").removeprefix("//localhost")).lstrip("/")
        )
        # file:/… with one slash is no URL to `is_remote`, so it becomes a path whatever is there
        if not text.startswith("file://") or (
            path.is_file() and not is_shard(path) and path.suffix != ".parquet"
        ):
            return path
        if path.is_dir():
            refuse_folder(Tree(path))
    return source
