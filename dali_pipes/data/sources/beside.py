"""Counts what is beside the shards or Parquet files of a folder, and is left out: other files,
images in its folders, and shards that the numbers in their names say are missing. Where files are
named, by a pattern or one by itself, these are images that the source does not name.
"""

import os
from collections.abc import Collection
from pathlib import Path

from dali_pipes.data.omissions import Omission, count_by_kind
from dali_pipes.data.shards.listing import list_objects
from dali_pipes.data.sources.names import is_pattern, sort_names
from dali_pipes.data.sources.shards import (
    CLASSES_FILE,
    MISSING_SHARDS,
    is_shard,
    list_missing_shards,
)
from dali_pipes.data.sources.tree import files_below

UNNAMED = "images that the source does not name"
INDEX = "index.arrow"  # the file beside images that has their manifest (index.py)


def count_beside(
    source: Path | str, folder: Path | str, shards: Collection[bytes]
) -> list[Omission]:
    """Counts files beside the shards of a folder, and shards that its numbering lacks.

    For one shard or a pattern only images are counted, since the other files are the user's choice.
    Parquet files with images are read whatever folders are beside them, so what these folders hold
    is counted here.
    """
    missing = count_by_kind(
        (MISSING_SHARDS, name) for name in list_missing_shards(map(os.fsdecode, shards))
    )
    if str(source).rstrip("/") != str(folder):
        return [*(missing if is_pattern(source) else []), *_count_unnamed(folder)]

    if isinstance(folder, str):
        there = list(list_objects(folder))
    else:
        there = [entry.name for entry in os.scandir(folder) if not entry.is_dir()]

    named = {os.fsdecode(name) for name in shards} | {INDEX, CLASSES_FILE}
    images, omissions = sort_names(sorted(name for name in there if name not in named))
    return [
        *missing,
        *omissions,
        *count_by_kind(("images beside the shards", name) for name in images),
        *_count_in_folders(folder, named),
    ]


def _count_unnamed(folder: Path | str) -> list[Omission]:
    """Counts the images of a folder of which a source names some shards.

    `strict` allows them, as it allows notes: who names the files has chosen.
    """
    # a store is asked for no listing: one of many objects costs more than opening a shard
    if isinstance(folder, str):
        return []

    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.is_dir())
    except PermissionError:  # a file may be readable by its name where its folder is not
        return []
    images, _ = sort_names(names)
    return count_by_kind(((UNNAMED, name) for name in images), "file")


def _count_in_folders(folder: Path | str, shards: Collection[str]) -> list[Omission]:
    """Counts the images, shards and Parquet files in the folders of a folder whose own files are
    read.
    """
    # a store is asked for the objects of the folder alone
    if isinstance(folder, str):
        return []

    # they are counted and not read, so what lies behind links is not theirs
    files = [file for file in files_below(folder, links=False) if "/" in file]
    unread = [("images in folders beside the shards", image) for image in sort_names(files)[0]]
    unread += [
        ("shards in folders beside the shards", file)
        for file in files
        if (is_shard(file) or file.endswith(".parquet")) and file not in shards
    ]
    return count_by_kind(unread)
