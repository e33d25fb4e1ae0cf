"""Scans of folders and shards, which go on from an earlier one that a file in a cache has.

`scan` reads the images, `cache_file` names the file for a folder of such files, and `count_beside`
counts what is left out beside shards.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from dali_pipes.checks import check_choice
from dali_pipes.data.doubts import find_doubts
from dali_pipes.data.facts import ManifestFacts
from dali_pipes.data.image_files.headers import ScanOptions, describe_os_error
from dali_pipes.data.image_table import ImageTable
from dali_pipes.data.limits import MAX_PIXELS
from dali_pipes.data.objects import NO_TARGETS, Targets
from dali_pipes.data.omissions import Omission
from dali_pipes.data.shards.addresses import absolute, is_remote
from dali_pipes.data.shards.listing import FileVersion
from dali_pipes.data.sources import saved_manifests
from dali_pipes.data.sources.beside import count_beside
from dali_pipes.data.sources.folders import scan_folder
from dali_pipes.data.sources.kinds import kind_of_pattern
from dali_pipes.data.sources.layouts import local_path, refuse_other_layouts
from dali_pipes.data.sources.names import is_housekeeping, is_pattern, list_entries
from dali_pipes.data.sources.reading import finish, note_reading
from dali_pipes.data.sources.rows.earlier import EarlierScan, FolderRecords, scanning_into
from dali_pipes.data.sources.shards import list_shards, scan_shards
from dali_pipes.data.sources.store_folders import scan_objects
from dali_pipes.data.sources.targets import add_targets
from dali_pipes.data.table import saved
from dali_pipes.errors import ConfigError, ManifestError

log = logging.getLogger(__name__)


def read_images(
    root: str | Path,
    *,
    verify: str = "header",
    max_pixels: int = MAX_PIXELS,
    cache: str | Path | None = None,
    unchanged: str = "file",
    targets: Targets = NO_TARGETS,
    classes: Sequence[str] | None = None,
    with_labels: bool = True,
    strict: bool = False,
    workers: int | None = None,
    progress: bool = True,
    bits: int = 8,
) -> ImageTable:
    """Reads the headers of all images under `root`: a folder for each class, or shards.

    Subfolders of class folders are included.

    One line of the log says what is left out, such as files that no loader decodes or images
    beside the class folders; `omissions` has all of it.

    Args:
        root: a folder of class folders or of shards, here or by its URL, one shard, or a
            pattern of their names such as train-*.tar or train-{0000..0063}.tar
            (docs/shards.md).
        verify: "header" reads headers only; "full" also decodes every image, and so detects
            truncated ones.
        max_pixels: images with more are a problem; by default Pillow's limit against
            decompression bombs, which may be exceeded.
        cache: a file such as train.arrow, which all processes of a machine then map and share;
            or .parquet. Images that have not changed since it was written are not read again,
            and the result is saved there.
        unchanged: what shows that an image is the one that was scanned before: "file", its own
            size and modification time; "folder", that of its folder, so that one look at each
            folder is enough. A file that is overwritten in its place does not change its
            folder.
        targets: what shards hold besides labels: docs/objects.md. Such a scan is not cached:
            `save` it.
        classes: names of the class folders, in the order of their numbers, such as those of the
            training images: a class without a folder has no image here, and folders that are
            not named are left out. None: each folder is a class, sorted. For shards, the names
            of the class numbers.
        with_labels: False: no label is read, and none is needed. All images are taken, in
            whatever folder, and shards need no class; `task` is then "multilabel", with no class
            for any image.
        strict: an image or an object that is left out is an error.
        workers: processes that read; by default twice the number of cores, so that a slow disk
            is kept busy.
        progress: show a progress bar on stderr.
        bits: 16 takes PNG and TIFF of 16 bits a channel too, gray or RGB. Some loaders decode them,
            and only some transforms take them (docs/inputs.md).

    Raises:
        ManifestError: no such folder, no class folders in it, no image in them, or folders of
            splits such as train and val.
        OmissionError: `strict`, and something is left out.
    """
    file = Path(cache) if cache else None
    check = ScanOptions(verify, max_pixels, workers, progress, targets, with_labels, classes, bits)
    if file and targets.named:
        raise ConfigError(
            "a scan for targets is not cached; leave out cache, and save the manifest"
        )

    images = _scan_readable(root, check, file, unchanged)
    # for an index: opening it compares these with what is asked for
    images = images.with_facts(reading=note_reading(targets, with_labels, bits=bits))
    images = add_targets(images, root, check)

    return finish(images, classes, strict)


def _scan_readable(
    root: str | Path, check: ScanOptions, cache: Path | None, unchanged: str
) -> ImageTable:
    """Scans folders or shards, and names a folder that may not be read."""
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
    entries = list_entries(root) if not is_remote(root) and Path(root).is_dir() else []
    refuse_other_layouts(root, check.with_labels, entries)
    if is_pattern(root) and kind_of_pattern(root) == "table":
        raise ManifestError(
            f"{root}: images in Parquet files are opened with Manifest.open or Manifest.from_table"
        )

    folder, shards = absolute(root), dict[bytes, FileVersion]()
    # a folder with folders has no shards, and is not listed once more
    if not any(is_folder and not is_housekeeping(name) for name, is_folder in entries):
        folder, shards = list_shards(folder)
    if check.targets.named and not shards:
        why = (
            "targets are read from shards and tables; of images in folders use from_coco "
            "or from_masks"
        )
        raise ManifestError(f"{folder}: {why}")

    with scanning_into(cache):
        # the lock is held: another scan into this cache has ended, and may have filled it
        cached = _load_cached(cache, folder, check.with_labels) if cache else None
        known = cached.table if cached and (shards or isinstance(folder, str)) else None
        are_named = check.classes is not None
        folders: FolderRecords = {}
        omissions: list[Omission] = []
        rows: pa.Table | None
        if shards:
            classes, rows, has_names = scan_shards(folder, shards, check, known)
            are_named |= has_names
            omissions = count_beside(absolute(root), folder, shards)
        elif isinstance(folder, str):
            classes, rows, omissions = scan_objects(folder, check, known)
        else:
            earlier = EarlierScan()
            if cached:
                usable, records = cached.rows.table(), cached.facts.folders
                earlier = EarlierScan(usable, records, cached.classes, unchanged == "folder")
            classes, rows, folders = scan_folder(folder, entries, check, earlier)
            if rows is None:
                assert cached is not None  # in which no folder was touched since
                return cached

        facts = ManifestFacts(
            folders=folders, keypoints=check.targets.keypoints_named, omissions=omissions
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
        images = saved_manifests.load(cache)
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
