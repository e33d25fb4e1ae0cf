"""Scans of folders and shards, which go on from an earlier one that a file in a cache has.

`scan` reads the images, `cache_file` names the file for a folder of such files, and `count_beside`
counts what is left out beside shards.
"""

import hashlib
import logging
import os
from collections.abc import Collection
from pathlib import Path

import pyarrow.compute as pc

from dali_pipes.checks import check_choice
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_files.headers import ScanOptions, describe_os_error
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.omissions import Omission, count_by_kind
from dali_pipes.data.shards.parquet import group_of, is_group
from dali_pipes.data.shards.remote import absolute, is_remote, list_objects
from dali_pipes.data.sources import saved_manifests
from dali_pipes.data.sources.folders import scan_folder
from dali_pipes.data.sources.kinds import kind_of_pattern
from dali_pipes.data.sources.layouts import local_path, refuse_other_layouts
from dali_pipes.data.sources.names.listing import list_entries, sort_names
from dali_pipes.data.sources.names.patterns import is_pattern
from dali_pipes.data.sources.rows.earlier import EarlierScan, FolderRecords, Journal
from dali_pipes.data.sources.shards import (
    CLASSES_FILE,
    MISSING_SHARDS,
    list_missing_shards,
    list_shards,
    scan_shards,
)
from dali_pipes.data.sources.store_folders import scan_objects
from dali_pipes.data.table import saved
from dali_pipes.data.table.schema import RULES
from dali_pipes.errors import ManifestError

INDEX = "index.arrow"  # the file beside images that has their manifest (index.py)

log = logging.getLogger(__name__)


def scan(root: str | Path, check: ScanOptions, cache: Path | None, unchanged: str) -> ImageTable:
    """Scans folders or shards, and saves the images in the cache.

    Returns those of the cache if nothing has changed.

    Raises:
        ManifestError: as `Manifest.scan`; or a folder may not be read.
    """
    try:
        return _scan(root, check, cache, unchanged)
    except PermissionError as error:
        place = os.fsdecode(error.filename or os.fspath(root))
        raise ManifestError(
            f"{place}: {describe_os_error(error)}; make it readable, or move it away"
        ) from None


def _scan(root: str | Path, check: ScanOptions, cache: Path | None, unchanged: str) -> ImageTable:
    check_choice("unchanged", unchanged, ("file", "folder"))

    # refuse what is no source of this kind, before images are read
    root = local_path(root)
    entries = list_entries(Path(root)) if not is_remote(root) and Path(root).is_dir() else []
    refuse_other_layouts(root, check.with_labels, entries)
    if is_pattern(root) and kind_of_pattern(root) == "table":
        raise ManifestError(
            f"{root}: images in Parquet files are opened with Manifest.open or Manifest.from_table"
        )

    # targets are read from shards, without a cache
    folder, shards = list_shards(absolute(root))
    if check.targets.named:
        if not shards:
            why = (
                "targets are read from shards and tables; of images in folders use from_coco "
                "or from_masks"
            )
            raise ManifestError(f"{folder}: {why}")
        classes, table = scan_shards(folder, shards, check)
        beside = count_beside(absolute(root), folder, shards)
        facts = ManifestFacts(keypoints=check.targets.keypoints_named, omissions=beside)
        return ImageTable.from_table(folder, classes, table, facts)

    folders: FolderRecords = {}
    omissions: list[Omission] = []
    with Journal(cache) as journal:
        before = _load_cached(cache, check.with_labels) if cache else None
        # a scan of another root does not count, even if the same files are there
        before = before if before and before.root == folder else None

        if shards:
            classes, table = scan_shards(folder, shards, check, before.table if before else None)
            omissions = count_beside(absolute(root), folder, shards)
        elif isinstance(folder, str):
            classes, table, omissions = scan_objects(folder, check)
        else:
            earlier = _earlier(before, journal, unchanged)
            classes, table, folders = scan_folder(folder, entries, check, earlier)

        # no folder was touched since the earlier scan
        if table is None:
            assert before is not None
            return before

        facts = ManifestFacts(folders=folders, omissions=omissions)
        images = ImageTable.from_table(folder, classes, table, facts)
        return before if before and _are_equal(images, before) else _save_cached(images, cache)


def _earlier(before: ImageTable | None, journal: Journal, unchanged: str) -> EarlierScan:
    if before is None:
        return EarlierScan(None, {}, [], journal, trust=False)
    return EarlierScan(
        before.samples.table(),
        before.facts.folders,
        before.classes,
        journal,
        trust=unchanged == "folder",
    )


def _are_equal(images: ImageTable, before: ImageTable) -> bool:
    return (
        images.classes == before.classes
        and images.facts.folders == before.facts.folders
        and images.omissions == before.omissions
        and images.table.equals(before.table)
    )


def count_beside(
    source: Path | str, folder: Path | str, shards: Collection[bytes]
) -> list[Omission]:
    """Counts files beside the shards of a folder, and shards that its numbering lacks.

    Other files are not listed for one shard or for a pattern.
    """
    missing = count_by_kind(
        (MISSING_SHARDS, name) for name in list_missing_shards(map(os.fsdecode, shards))
    )
    if str(source).rstrip("/") != str(folder):
        return missing if is_pattern(source) else []

    if isinstance(folder, str):
        there = list(list_objects(folder))
    else:
        there = [entry.name for entry in os.scandir(folder) if not entry.is_dir()]

    named = {os.fsdecode(name) for name in shards} | {INDEX, CLASSES_FILE}
    images, omissions = sort_names(sorted(name for name in there if name not in named))
    return (
        missing + omissions + count_by_kind(("images beside the shards", name) for name in images)
    )


def count_beside_parquet(source: Path | str, images: ImageTable) -> list[Omission]:
    """Counts what is beside the Parquet files that hold images.

    Returns nothing for a table of paths.
    """
    paths = images.table["path"]
    if not len(paths) or not is_group(os.fsdecode(paths[0].as_py())):
        return []

    names = {os.fsencode(group_of(os.fsdecode(path))[0]) for path in pc.unique(paths).to_pylist()}
    return count_beside(source, images.root, names)


def _load_cached(cache: Path, with_labels: bool) -> ImageTable | None:
    """Loads an earlier scan from the cache.

    Returns None if the cache is missing, or is from another version or for another purpose; it is
    then replaced.
    """
    try:
        saved.refuse_other_file(cache)
    except PermissionError:
        return None  # `_save_cached` warns that it cannot be written
    try:
        images = saved_manifests.load(cache)
        images.samples.table()  # reading the table checks all of it
    except ManifestError:
        return None

    is_alike = images.facts.rules == RULES and (images.task != "multilabel") == with_labels
    return images if is_alike else None


def _save_cached(images: ImageTable, cache: Path | None) -> ImageTable:
    """Saves images in the cache.

    Returns them mapped from its file, if that is an Arrow file; a cache that cannot be written is
    warned of.
    """
    if not cache:
        return images

    try:
        saved_manifests.save(images, cache)
        return saved_manifests.load(cache) if cache.suffix == saved.MAPPED else images
    except OSError as error:
        log.warning(
            "the scan cannot be cached in %s (%s); continuing without a cache",
            cache,
            error.strerror,
        )
        return images


def cache_file(folder: str | Path, root: str | Path, with_labels: bool = True) -> Path | None:
    """The file for the cached scan of a root; None if the cache cannot be used.

    A damaged file there is removed.
    """
    # scans with and without labels have different rows
    purpose = b"" if with_labels else b"\0without labels"
    key = hashlib.sha256(os.fsencode(absolute(root)) + purpose).hexdigest()[:16]
    file = Path(folder, f"{Path(root).name[:60] or 'root'}-{key}{saved.MAPPED}")

    try:
        if file.exists() and not saved.is_manifest(file):
            log.warning("%s is damaged; the images are scanned again", file)
            file.unlink()
    except OSError as error:  # such as the home of another user, in a container
        log.warning(
            "the cache %s cannot be used (%s); continuing without a cache",
            folder,
            describe_os_error(error),
        )
        return None
    return file
