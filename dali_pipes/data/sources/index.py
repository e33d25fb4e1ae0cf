"""index.arrow: the saved manifest of the images in an object store, beside them, so that opening
these images reads this one object and no image.

`write_index` writes it, here before the images are uploaded or in the store; `read_index` opens it
for those who ask for the options that it was read with (`note_reading`), or for none.
"""

import logging
import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.compute as pc

from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.omissions import is_of_label
from dali_pipes.data.shards.addresses import absolute, is_remote, is_web
from dali_pipes.data.shards.copies import cache_folder, copy_of
from dali_pipes.data.shards.listing import version_of
from dali_pipes.data.shards.parquet import group_of, is_group
from dali_pipes.data.shards.remote import download, write_object
from dali_pipes.data.shards.store_requests import RefusedError
from dali_pipes.data.sources.beside import INDEX
from dali_pipes.data.sources.hugging_face import all_embedded_files
from dali_pipes.data.sources.names import refuse_several_splits
from dali_pipes.data.sources.shards import list_all_shards
from dali_pipes.data.table import saved
from dali_pipes.errors import ManifestError
from dali_pipes.system.files import open_replacing

log = logging.getLogger(__name__)


def read_index(url: str, asked: dict[str, Any]) -> ImageTable | None:
    """Reads the images that a folder's index has.

    Returns None if there is no index, or one that was written with other options than are asked
    for.

    If the index was written before the shards were uploaded, it has only their sizes, which are
    compared now. If it was written in the store, it has their ETags, which are compared when a
    shard is fetched.

    Args:
        asked: the options that are asked for, as from `note_reading`; an index is taken as it is
            where nothing is asked.

    Raises:
        ManifestError: the index is damaged, or is not of the files that are there.
    """
    place = f"{url.rstrip('/')}/{INDEX}"
    again = (
        f"Manifest.scan('{url}').save_index() (images in Parquet files: "
        f"Manifest.from_table('{url}').save_index())"
    )
    try:
        images = _load_index(place)
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_web(url) and isinstance(error, RefusedError):
            return None  # many web servers answer so for what is not there
        raise ManifestError(f"{place}: {error}") from None
    except ManifestError as error:
        raise ManifestError(f"{place}: damaged ({error}); write it again: {again}") from None

    written = images.facts.reading
    if not any(is_of_label(why) for _, why in images.problems):
        written = {**written, "with_labels": False}  # no image is left out for its label
    if any(written.get(name) != value for name, value in asked.items()):
        few = ", ".join(f"{name}={value}" for name, value in asked.items())
        do = "write it again with these options to open it as fast"
        log.warning(
            "%s was not written with %s, so the images are read instead of it; %s", place, few, do
        )
        return None

    if not images.whole_files:
        refuse_several_splits(url, _files_of(images.shards.names))

    # an index is about the images beside it, wherever these are now
    before = images.root
    images = images.moved_to(url.rstrip("/"))
    # an index from the store has ETags, and one of whole files has no sizes to compare
    if is_remote(before) or not images.shards.bytes.any():
        return images

    listed = {os.fsdecode(name): version for name, version in list_all_shards(url)[1].items()}
    if added := sorted(listed.keys() - set(images.shards.names)):
        raise ManifestError(f"{place}: {added[0]} is not in the index; write it again: {again}")

    # a shard that was replaced by one of another size would give other images
    for name, size in zip(images.shards.names, images.shards.bytes.tolist(), strict=True):
        there = listed.get(name, (0, 0))[0]
        if there != size:
            is_other = f"has {there:,} bytes" if name in listed else "is not there"
            sizes = f"{name} has {size:,} bytes in the index, and {is_other}"
            raise ManifestError(f"{place}: {sizes}; upload it, or write the index again")

    return images.with_versions(listed)


def _load_index(place: str) -> ImageTable:
    """Loads an index from its copy in the cache, which is mapped.

    The copy is fetched if it is missing or damaged. It is not removed to make room, as copies of
    shards are.

    Raises:
        FileNotFoundError: there is no index.
        OSError: it cannot be fetched.
        ManifestError: what the store has is damaged.
    """
    version = version_of(place)
    # in a folder of its own, where copies.py does not look for room
    file = cache_folder() / "indexes" / f"{copy_of(place, version).name}.arrow"
    was_there = file.exists() and file.stat().st_size == version[0]
    if not was_there:
        with open_replacing(file) as out:
            download(place, version, out)

    try:
        images = saved.load(file)
        saved.verify(images)
        return images
    except ManifestError:
        file.unlink(missing_ok=True)
        if not was_there:
            raise

    # the copy is gone now, so this happens once at most
    log.warning("%s: its copy in the cache was damaged, and is fetched again", place)
    return _load_index(place)


def write_index(images: ImageTable) -> str:
    """Writes the index beside the images; returns its path or URL.

    Raises:
        ManifestError: it would hold no image, would lack files of the folder, or cannot be written
            there.
    """
    place = f"{images.root}/{INDEX}"
    if not len(images):
        why = f", such as {': '.join(images.problems[0])}" if images.problems else ""
        do = (
            "name what is read of an image besides its label (targets, --target), or read them "
            "without labels"
        )
        raise ManifestError(
            f"{place}: would hold no image ({len(images.problems):,} cannot be used{why}); {do}"
        )

    if not images.whole_files:
        _refuse_incomplete(images)

    if not is_remote(place):
        if any(map(is_group, images.shards.files)):
            raise ManifestError(
                f"{place}: an index of Parquet files is written where they lie: "
                "Manifest.open(URL).save_index()"
            )
        if not images.whole_files:
            images = images.with_versions(dict.fromkeys(images.shards.names, (0, 0)))
        # it is uploaded with the shards, where times and folders of this machine mean nothing
        saved.save(images.moved_to("."), place)
        return place

    with TemporaryDirectory() as folder:
        file = Path(folder, INDEX)
        saved.save(images, file)
        try:
            write_object(place, file.read_bytes())
        except OSError as error:
            raise ManifestError(
                f"{place}: {error}; it needs the permission to write there"
            ) from None

    return place


def _refuse_incomplete(images: ImageTable) -> None:
    """Raises ManifestError if there are shards or Parquet files beside those of the manifest.

    A reader of the index would miss them.
    """
    folder = absolute(images.root)
    shards = map(os.fsdecode, list_all_shards(folder)[1])
    there = {Path(file).name for file in [*shards, *all_embedded_files(folder)]}

    paths = map(os.fsdecode, pc.unique(images.table["path"]).to_pylist())
    if missing := sorted(there - set(_files_of(paths))):
        few = (
            f"{len(missing):,} of the {len(there):,} files there are not in this manifest, "
            f"such as {missing[0]}"
        )
        why = "and an index is of all files of its folder, so who reads it would miss them"
        do = (
            "if all are one data set, index the folder; otherwise save this manifest "
            "(Manifest.save) and open that file"
        )
        raise ManifestError(f"{images.root}/{INDEX}: {few}, {why}; {do}")


def _files_of(paths: Iterable[str]) -> list[str]:
    """Returns the shard or Parquet file of each path of a manifest."""
    return [group_of(path)[0] if is_group(path) else path for path in paths]
