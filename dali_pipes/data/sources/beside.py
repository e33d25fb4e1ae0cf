"""Counts what is beside the shards or Parquet files of a folder, and is left out: other files,
images in its folders, and shards that the numbers in their names say are missing. Where files are
named, by a pattern or one by itself, these are images that the source does not name.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from dali_pipes.data.omissions import Omission, count_by_kind
from dali_pipes.data.shards.listing import list_objects
from dali_pipes.data.sources.names import is_pattern, select_images
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
    named = {os.fsdecode(name) for name in shards} | {INDEX, CLASSES_FILE}
    if str(source).rstrip("/") == str(folder):
        there = list(list_objects(folder)) if isinstance(folder, str) else _files_in(folder)
        images, omissions = select_images(sorted(name for name in there if name not in named))
        beside = count_by_kind(("images beside the shards", name) for name in images)
        return [*missing, *omissions, *beside, *_count_in_folders(folder, named)]

    # a store is asked for no listing: one of many objects costs more than opening a shard
    unnamed: list[str] = []
    if isinstance(folder, Path):
        # a file may be readable by its name where its folder is not
        with suppress(PermissionError):
            unnamed = select_images(sorted(_files_in(folder)))[0]
    # `strict` allows them, as it allows notes: who names the files has chosen
    omissions = count_by_kind(((UNNAMED, name) for name in unnamed), "file")
    return [*(missing if is_pattern(source) else []), *omissions]


def _files_in(folder: Path) -> list[str]:
    return [entry.name for entry in os.scandir(folder) if not entry.is_dir()]


def _count_in_folders(folder: Path | str, shards: Collection[str]) -> list[Omission]:
    """Counts the images, shards and Parquet files in the folders of a folder whose own files are
    read.
    """
    # a store is asked for the objects of the folder alone
    if isinstance(folder, str):
        return []

    # they are counted and not read, so what lies behind links is not theirs
    files = [file for file in files_below(folder, links=False) if "/" in file]
    unread = [("images in folders beside the shards", image) for image in select_images(files)[0]]
    unread += [
        ("shards in folders beside the shards", file)
        for file in files
        if (is_shard(file) or file.endswith(".parquet")) and file not in shards
    ]
    return count_by_kind(unread)
