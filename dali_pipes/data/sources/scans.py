"""Scans of folders and shards, which go on from an earlier one that a file in a cache has.

`read_images` reads the images, and `count_beside` counts what is left out beside shards.
"""

import hashlib
import logging
import os
from pathlib import Path

import pyarrow as pa

from dali_pipes.data.doubts import find_doubts
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_files.headers import describe_os_error
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.omissions import Omission
from dali_pipes.data.shards.addresses import absolute, is_remote
from dali_pipes.data.shards.listing import FileVersion
from dali_pipes.data.sources.beside import count_beside
from dali_pipes.data.sources.folders import scan_folder
from dali_pipes.data.sources.kinds import kind_of_pattern
from dali_pipes.data.sources.layouts import local_path, refuse_other_layouts
from dali_pipes.data.sources.names import is_housekeeping, is_pattern, list_entries
from dali_pipes.data.sources.options import SourceOptions
from dali_pipes.data.sources.reading import finish, note_reading
from dali_pipes.data.sources.rows.earlier import EarlierScan, FolderRecords, scanning_into
from dali_pipes.data.sources.shards import list_shards, scan_shards
from dali_pipes.data.sources.store_folders import scan_objects
from dali_pipes.data.sources.targets import add_targets
from dali_pipes.data.table import saved
from dali_pipes.errors import ConfigError, ManifestError

log = logging.getLogger(__name__)


def read_images(source: str | Path, options: SourceOptions) -> ImageTable:
    """Reads the headers of all images under `source`: a folder for each class, or shards.

    Subfolders of class folders are included.

    One line of the log says what is left out, such as files that no loader decodes or images
    beside the class folders; `omissions` has all of it. A scan for targets is not cached: `save`
    it.

    Args:
        source: a folder of class folders or of shards, here or by its URL, one shard, or a
            pattern of their names such as train-*.tar or train-{0000..0063}.tar
            (docs/shards.md).

    Raises:
        ManifestError: no such folder, no class folders in it, no image in them, or folders of
            splits such as train and val.
        OmissionError: `strict`, and something is left out.
    """
    root = local_path(source)
    options.refuse_untaken(root, "images")
    if options.cache and options.targets.named:
        raise ConfigError(
            "a scan for targets is not cached; leave out cache, and save the manifest"
        )

    try:
        images = _scan(root, options)
    except PermissionError as error:
        place = os.fsdecode(error.filename or os.fspath(root))
        raise ManifestError(
            f"{place}: {describe_os_error(error)}; make it readable, or move it away"
        ) from None

    # for an index: opening it compares these with what is asked for
    images = images.with_facts(reading=note_reading(options))
    images = add_targets(images, root, options)

    return finish(images, options)


def _scan(root: str | Path, options: SourceOptions) -> ImageTable:
    # refuse what is no source of this kind, before images are read
    entries = list_entries(root) if not is_remote(root) and Path(root).is_dir() else []
    refuse_other_layouts(root, options.with_labels, entries)
    if is_pattern(root) and kind_of_pattern(root) == "parquet":
        raise ManifestError(
            f"{root}: images in Parquet files are opened with Manifest.open or Manifest.from_table"
        )

    folder, shards = absolute(root), dict[bytes, FileVersion]()
    # a folder with folders has no shards, and is not listed once more
    if not any(is_folder and not is_housekeeping(name) for name, is_folder in entries):
        folder, shards = list_shards(folder)
    if options.targets.named and not shards:
        why = (
            "targets are read from shards and tables; of images in folders use from_coco "
            "or from_masks"
        )
        raise ManifestError(f"{folder}: {why}")

    cache = _cache_of(root, options)
    with scanning_into(cache):
        # the lock is held: another scan into this cache has ended, and may have filled it
        cached = _load_cached(cache, folder, options.with_labels) if cache else None
        known = cached.table if cached and (shards or isinstance(folder, str)) else None
        are_named = options.classes is not None
        folders: FolderRecords = {}
        omissions: list[Omission] = []
        rows: pa.Table | None
        if shards:
            classes, rows, has_names = scan_shards(folder, shards, options, known)
            are_named |= has_names
            omissions = count_beside(absolute(root), folder, shards)
        elif isinstance(folder, str):
            classes, rows, omissions = scan_objects(folder, options, known)
        else:
            earlier = EarlierScan()
            if cached:
                usable, records = cached.rows.table(), cached.facts.folders
                by_folder = options.unchanged == "folder"
                earlier = EarlierScan(usable, records, cached.classes, by_folder)
            classes, rows, folders = scan_folder(folder, entries, options, earlier)
            if rows is None:
                assert cached is not None  # in which no folder was touched since
                return cached

        facts = ManifestFacts(
            folders=folders, keypoints=options.targets.keypoints_named, omissions=omissions
        )
        images = ImageTable.from_rows(folder, classes, rows, facts)
        # before it is saved, so that a scan that comes from the cache need not read its rows
        images = images.with_facts(doubts=find_doubts(images, are_named))
        # nothing is written if nothing changed: other processes go on sharing the mapped file
        if cached and _are_equal(images, cached):
            return cached
        return _save_cached(images, cache) if cache else images


def _are_equal(images: ImageTable, before: ImageTable) -> bool:
    return (
        images.classes == before.classes
        and images.facts.folders == before.facts.folders
        and images.omissions == before.omissions
        and images.table.equals(before.table)
    )


def _load_cached(cache: Path, root: Path | str, with_labels: bool) -> ImageTable | None:
    """Loads an earlier scan from the cache.

    Returns None if the cache is missing, or is from another version, of another root or for another
    purpose; it is then replaced.
    """
    try:
        saved.refuse_other_file(cache)
    except PermissionError:
        return None  # `_save_cached` warns that it cannot be written
    try:
        images = saved.load(cache)
        images.rows.table()  # reading the table checks all of it
    except ManifestError:
        return None

    # a scan of another root does not count, even if the same files are there; without labels, each
    # image has an empty list of classes
    is_same = images.root == root and (images.task != "multilabel") == with_labels
    return images if is_same else None


def _save_cached(images: ImageTable, cache: Path) -> ImageTable:
    """Saves images in the cache.

    Returns them mapped from its file, if that is an Arrow file; a cache that cannot be written is
    warned of.
    """
    try:
        saved.save(images, cache)
        return saved.load(cache) if cache.suffix == saved.MAPPED else images
    except OSError as error:
        why = error.strerror
        log.warning("the scan cannot be cached in %s (%s); continuing without a cache", cache, why)
        return images


def _cache_of(root: str | Path, options: SourceOptions) -> Path | None:
    """The file of the cached scan; None: there is none, or it cannot be used.

    A damaged file in the folder of caches is removed.
    """
    if options.cache:
        return Path(options.cache)
    if options.cache_dir is None or options.targets.named:
        return None

    # scans with and without labels have different rows
    purpose = b"" if options.with_labels else b"\0without labels"
    key = hashlib.sha256(os.fsencode(absolute(root)) + purpose).hexdigest()[:16]
    file = Path(options.cache_dir, f"{Path(root).name[:60] or 'root'}-{key}{saved.MAPPED}")
    try:
        if file.exists() and not saved.is_manifest(file):
            log.warning("%s is damaged; the images are scanned again", file)
            file.unlink()
    except OSError as error:  # such as the home of another user, in a container
        why = describe_os_error(error)
        log.warning(
            "the cache %s cannot be used (%s); continuing without a cache", file.parent, why
        )
        return None
    return file
