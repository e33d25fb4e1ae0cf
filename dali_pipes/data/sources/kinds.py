"""What a source is, and so which function reads it."""

import os
from pathlib import Path

from dali_pipes.data.shards.addresses import absolute, is_remote
from dali_pipes.data.sources.hugging_face import all_embedded_files, embedded_files
from dali_pipes.data.sources.names import is_pattern
from dali_pipes.data.sources.shards import is_shard, list_all_shards
from dali_pipes.data.table import saved
from dali_pipes.errors import ManifestError

ENDINGS = {".json": "coco"}  # files of one kind, whatever is in them


def kind_of(source: str | Path) -> str:
    """Says of which of `options.KINDS` a source is.

    What is neither a saved manifest nor a table nor a file of COCO's form is images in folders or
    shards.
    """
    file = Path(source)
    if is_pattern(source):
        return kind_of_pattern(source)

    # a store is asked as little as possible: names decide
    if is_remote(source):
        return (
            "parquet"
            if file.suffix == ".parquet" or (not is_shard(file) and embedded_files(str(source)))
            else "images"
        )

    if file.suffix in ENDINGS:
        return ENDINGS[file.suffix]

    # any .arrow is opened as a manifest: `load` says what is wrong with another file
    if (file.suffix == saved.MAPPED and not file.is_dir()) or (
        file.suffix == ".parquet" and saved.is_manifest(file)
    ):
        return "manifest"
    if (
        # a file that is not there is a table by its name, and its reader says what it needs
        (file.is_dir() and embedded_files(file))
        or (file.is_file() and not is_shard(file))
        or file.suffix in (saved.MAPPED, ".parquet", ".csv", ".tsv")
    ):
        return kind_of_table(file)
    return "images"


def kind_of_table(source: str | Path) -> str:
    """Says which kind of table a source is: "parquet" or "csv"."""
    is_parquet = Path(source).suffix == ".parquet" or Path(source).is_dir() or is_remote(source)
    return "parquet" if is_parquet else "csv"


def kind_of_pattern(source: str | Path) -> str:
    """Says what the files of a pattern are: "parquet", which hold the images, or "images".

    Raises:
        ManifestError: they are of both kinds, or of none.
    """
    shards, tables = list_all_shards(absolute(source))[1], all_embedded_files(absolute(source))
    if shards and tables:
        both = f"{os.fsdecode(next(iter(shards)))} and {Path(tables[0]).name}"
        raise ManifestError(
            f"{source}: matches shards of two kinds, such as {both}; match one kind"
        )

    if not shards and not tables:
        kinds = "NAME.tar, NAME.tfrecord, or NAME.parquet with images in it"
        raise ManifestError(
            f"{source}: matches files, but none is a shard ({kinds}); give a folder or a table "
            "without a pattern"
        )

    return "parquet" if tables else "images"
